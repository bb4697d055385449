"""Sends a job."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final, get_type_hints
from urllib.parse import quote

from pydantic import create_model

from fennelq.errors import BrokerUnavailable, UnknownTask
from fennelq.manage.sending import Caller, GivenCall, GivenOptions, Where, described, read_call, sent
from fennelq.web.gate import Rejected
from fennelq.web.http.call import Answer, Call
from fennelq.web.http.forms import Query
from fennelq.web.http.problems import OutcomeUnknown
from fennelq.web.looks import PATIENCE
from fennelq.web.visit import Forbidden, NotFound

_KEY: Final = re.compile(r'"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"|([!#$%&\'*+.^_`|~0-9A-Za-z:/-]+)')
"""A string or a token of RFC 8941."""
_LONGEST: Final = 255
_BELOW_TASK: Final = Where("", "", "", "?")


_QUERIED: Final[dict[str, Any]] = {
    name: (hint | None, None)
    for name, hint in get_type_hints(GivenOptions, include_extras=True).items()
    if name != "headers"
}
SendQuery = create_model("SendQuery", __base__=Query, **_QUERIED)
"""The options of a job, as the parameters of a query."""


async def send_job(call: Call) -> Answer:
    """Send the call in the body."""
    return await _send(call, read_call(call.json), Where())


async def send_task(call: Call) -> Answer:
    """Send a call of the task in the path; the body is the object of its arguments."""
    name = call.names["task"]
    given: dict[str, Any] = {"task": name, "kwargs": call.json}
    asked = call.asking(SendQuery).model_dump(exclude_unset=True)
    if asked:
        given["options"] = asked
    try:
        return await _send(call, read_call(given), _BELOW_TASK)
    except UnknownTask as error:
        raise NotFound(str(error)) from None


async def _send(call: Call, given: GivenCall, where: Where) -> Answer:
    check_may_send(call, given["task"])
    key = key_of(call)
    options = given.get("options", GivenOptions())
    described_ = described(call.app, given, Caller(call.user.name, key), where)
    try:
        async with asyncio.timeout(PATIENCE):
            await call.office.queues.check(options.get("queue"), where)
            handle = await sent(call.app, described_)
    except (TimeoutError, BrokerUnavailable) as error:
        if isinstance(error, BrokerUnavailable) and not error.retriable:
            raise
        raise OutcomeUnknown([described_.job.id]) from error
    value = {"id": handle.id, "deduplicated": handle.deduplicated}
    location = f"{call.request.scope.get('root_path', '')}/api/v1/jobs/{quote(handle.id, safe=':')}"
    return Answer(value, 200 if handle.deduplicated else 201, {"Location": location})


def check_may_send(call: Call, task: str) -> None:
    """Raises Forbidden when the user may not send jobs of this task."""
    if not call.user.can_send(task):
        raise Forbidden(
            f"{call.user.name} may not send {task[:200]}: its rights need send:{task[:200]}, or send."
        )


def key_of(call: Call) -> str:
    """The Idempotency-Key; empty without one. Raises Rejected for one that cannot be read."""
    raw = call.request.headers.get("idempotency-key")
    if raw is None:
        return ""
    found = _KEY.fullmatch(raw.strip())
    key = re.sub(r"\\(.)", r"\1", found[1] or "") or found[2] or "" if found else ""
    if not key or len(key) > _LONGEST:
        raise Rejected(
            400,
            "Malformed header",
            f'Idempotency-Key is a token, or a text in quotes, of 1-{_LONGEST} characters: write "order-42".',
        )
    return key
