"""Operations on many jobs: their plan goes to the browser and comes back with the confirmation, so that what is done is
what was shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import Field

from fennelq import clock
from fennelq.errors import OperationBusy
from fennelq.manage.acting import Act
from fennelq.manage.canary import CANARY_TIMEOUT
from fennelq.manage.operation_record import OperationInfo
from fennelq.manage.operations import OperationPlan
from fennelq.web.table import Form
from fennelq.web.visit import Visit


class BulkForm(Form):
    """The bound of a plan."""

    until: int = Field(ge=0, le=253_402_300_799_999)
    """Milliseconds since the epoch: jobs that were sent later are left alone."""
    total: int = Field(ge=0)


def planned(act: Act, where: str, form: BulkForm) -> OperationPlan:
    """The plan that was shown."""
    return OperationPlan(act=act, where=where, until=clock.from_ms(form.until), total=form.total, samples=[])


async def begin(
    visit: Visit,
    plan: OperationPlan,
    what: str,
    *,
    target: str = "",
    reason: str = "cancelled",
    limit: int | None = None,
    rate: float | None = None,
    canary: int | None = None,
    canary_timeout: float = CANARY_TIMEOUT,
    arguments: Mapping[str, Any] | None = None,
    anyway: bool = False,
) -> OperationInfo:
    """Begin an operation, and perform it whatever becomes of the request."""
    operation = await visit.app.operations.begin(
        plan,
        limit=limit,
        reason=reason,
        rate=rate,
        canary=canary,
        canary_timeout=canary_timeout,
        arguments=arguments,
        anyway=anyway,
        who=visit.who,
    )
    visit.site.begin(perform(visit, operation, what, target), f"operation {operation.id}")
    return operation


async def perform(visit: Visit, operation: OperationInfo, what: str, target: str = "") -> None:
    """Perform an operation, from where it is."""
    shown = " ".join([visit.redaction.filter(operation.where), *_how(operation)])
    left = max(0, operation.total - operation.done)
    async with visit.site.recorded(
        visit, what, target=target or operation.id, filter=shown, planned=left
    ) as record:
        try:
            ended = await visit.app.operations.resume(operation.id)
        except OperationBusy as busy:
            record.ended(outcome=str(busy))
            return
        problem = f": {ended.problem}" if ended.problem else ""
        record.ended(
            max(0, ended.done - operation.done),
            f"operation {ended.id} {ended.state}{problem}",
            state="done" if ended.state == "done" else "interrupted",
        )


def _how(operation: OperationInfo) -> Iterator[str]:
    """How it acts, for the record of operations."""
    if operation.canary:
        yield f"--canary {operation.canary}"
    if operation.rate:
        yield f"--rate {operation.rate:g}"
    if operation.arguments:
        yield f"--set {','.join(operation.arguments)}"


def milliseconds(moment: datetime) -> int:
    """A moment as the form has it."""
    return round(moment.astimezone(UTC).timestamp() * 1000)
