"""Operations on many jobs, which go on when their page is closed."""

from __future__ import annotations

from fennelq.errors import UnknownOperation
from fennelq.manage.operation_record import OperationInfo
from fennelq.web.bulk import perform
from fennelq.web.visit import Moved, Page, Visit, link


async def show(visit: Visit) -> Page:
    """The operations."""
    look = await visit.look()
    found = await look.operations()
    return Page(
        template="operations.html",
        title="Operations",
        section="operations",
        values={
            "running": sum(one.state == "running" for one in found),
            "operations": [(one, visit.redaction.filter(one.where)) for one in found],
        },
    )


async def one(visit: Visit) -> Page:
    """An operation."""
    await visit.look()
    info = await _found(visit)
    silent = bool(info.beat) and info.state == "running"
    return Page(
        template="operation.html",
        title=f"Operation {info.id}",
        section="operations",
        values={"info": info, "where": visit.redaction.filter(info.where), "silent": silent},
    )


async def stop(visit: Visit) -> Moved:
    """Stop an operation."""
    name = visit.names["operation"]
    async with visit.site.recorded(visit, "op stop", target=name) as record:
        info = await visit.app.operations.stop(name)
        record.ended(outcome=f"{info.state}, {info.done:,} of {info.total:,} jobs")
    return Moved(link("operations", name), "stopping")


async def resume(visit: Visit) -> Moved:
    """Go on with an operation."""
    info = await _found(visit)
    visit.site.begin(perform(visit, info, "op resume"), f"operation {info.id}")
    return Moved(link("operations", info.id), "resumed_operation")


async def _found(visit: Visit) -> OperationInfo:
    info = await visit.app.operations.get(visit.names["operation"])
    if info is None:
        raise UnknownOperation(visit.names["operation"])
    return info
