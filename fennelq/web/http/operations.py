"""Operations on many jobs: how far each is; stop one."""

from __future__ import annotations

from typing import Any

from fennelq.errors import UnknownOperation
from fennelq.manage import documents
from fennelq.manage.operation_record import OperationInfo
from fennelq.web.http.call import Answer, Call


async def list_operations(call: Call) -> Answer:
    """The operations of the last thirty days, the newest first."""
    await call.office.adopt(call)
    found = await call.app.operations.list()
    return Answer({"operations": [operation_document(call, one) for one in found]})


async def get_operation(call: Call) -> Answer:
    """How far an operation is."""
    name = call.names["operation"]
    await call.office.adopt(call)
    operation = await call.app.operations.get(name)
    if operation is None:
        raise UnknownOperation(name)
    return Answer(operation_document(call, operation))


async def stop_operation(call: Call) -> Answer:
    """Stop an operation on jobs, after those on which it acts now."""
    name = call.names["operation"]
    async with call.site.recorded(call, "op stop", target=name[:100]) as record:
        operation = await call.app.operations.stop(name)
        record.ended(outcome=operation.state)
    return Answer(operation_document(call, operation))


def operation_document(call: Call, operation: OperationInfo) -> dict[str, Any]:
    """An operation on jobs."""
    return documents.of_bulk(operation, call.redaction)
