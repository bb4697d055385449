"""Operations on many jobs, which go on when their page is closed."""

from __future__ import annotations

from fennelq.errors import UnknownOperation
from fennelq.manage.audit_entry import AuditEntry
from fennelq.manage.operation_record import OperationInfo
from fennelq.web.bulk import perform
from fennelq.web.looks import Look
from fennelq.web.visit import Moved, Page, Visit, link


async def show(visit: Visit) -> Page:
    """The operations."""
    look = await visit.look()
    found = await look.operations()
    lost = await _lost(visit, look)
    running = sum(one.state == "running" for one in found) + sum(
        one.state == "running" for one in visit.site.doing
    )
    return Page(
        template="operations.html",
        title="Operations",
        section="operations",
        values={
            "running": running,
            "operations": [(one, visit.redaction.filter(one.where)) for one in found],
            "doing": [*visit.site.doing],
            "lost": lost,
        },
    )


async def _lost(visit: Visit, look: Look) -> list[AuditEntry]:
    """Replays and purges that a web process has begun for itself, and of which it has not reported the end: those with
    a record of their own are continued, and are on the page in any case."""
    own = {(one.what, one.target) for one in visit.site.doing if one.state == "running"}
    found = await look.begun()
    return [
        one
        for one in found
        if one.via == "web" and one.target.startswith("--") and (one.what, one.target) not in own
    ]


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
