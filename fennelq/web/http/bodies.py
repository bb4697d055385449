"""Reads the bodies and queries of requests, within limits."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect, Request

from fennelq.manage.sending import Fault, WrongCall, faults_in, read_json
from fennelq.redaction import is_object
from fennelq.web.gate import Rejected
from fennelq.web.http.table import Route

_PATIENCE: Final = 30.0
"""Seconds within which a body must have arrived."""
LINES: Final = ("application/x-ndjson", "application/jsonl", "application/jsonlines")
"""The types of JSON lines."""


def media_of(request: Request) -> str:
    """The type of a body, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def body_of(request: Request, row: Route) -> bytes:
    """The body. Raises Rejected when it is too large, too slow, or of the wrong type."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and len(length) < 20 and int(length) > row.largest:
        raise _too_large(row)
    parts, size = list[bytes](), 0
    try:
        async with asyncio.timeout(_PATIENCE):
            async for part in request.stream():
                size += len(part)
                if size > row.largest:
                    raise _too_large(row)
                parts.append(part)
    except TimeoutError:
        raise Rejected(408, "Too slow", f"The body did not arrive within {_PATIENCE:g} s.") from None
    except ClientDisconnect:
        raise Rejected(400, "Not complete", "The client has left before the body was complete.") from None
    body = b"".join(parts)
    if (
        body
        and media_of(request) != "application/json"
        and not (row.body is list and media_of(request) in LINES)
    ):
        raise Rejected(
            415,
            "Unsupported media type",
            "Send JSON, with the header Content-Type: application/json.",
            Accept="application/json",
        )
    return body


def value_of(row: Route, body: bytes) -> Any:
    """The body as the type of the row. Raises NotJson and WrongCall."""
    given: Any = read_json(body) if body else {}
    if row.body is dict and not is_object(given):
        raise WrongCall([Fault("", "send an object with the arguments by name")])
    model: Any = row.body
    if not isinstance(model, type) or not issubclass(model, BaseModel):
        return given
    try:
        return _adapter(model).validate_python(given)
    except ValidationError as error:
        raise WrongCall(faults_in(error)) from None


def query_of(request: Request, model: type[BaseModel] | None) -> BaseModel | None:
    """The query as the model of the row. Raises WrongCall."""
    given = dict(request.query_params)
    if model is None:
        if given:
            name = min(given)
            raise Rejected(
                400, "Unknown parameter", f"This path has no parameter {name[:100]!r} in its query."
            )
        return None
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise WrongCall(faults_in(error, "?")) from None


def _too_large(row: Route) -> Rejected:
    return Rejected(
        413,
        "Too large",
        f"A body may have {row.largest:,} bytes here: store large data elsewhere, and send a reference.",
    )


@cache
def _adapter(model: type[BaseModel]) -> TypeAdapter[Any]:
    return TypeAdapter(model)
