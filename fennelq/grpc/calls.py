"""What every call passes: its token, and the right of its user. Errors become codes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError, Message

from fennelq import log
from fennelq.grpc.codes import Refused, code_of, text_of
from fennelq.manage.sending import KnownQueues
from fennelq.manage.server import now
from fennelq.model.checks import REASON
from fennelq.web.causes import in_a_line, traceback_of
from fennelq.web.failures import Failures
from fennelq.web.passwords import SignInUnavailable, Tokens
from fennelq.web.places import Places, streams, waits
from fennelq.web.users import MEANINGS, User

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.manage.audit import AwaitedOperation

Context = grpc.aio.ServicerContext[Any, Any]
Code: Final = grpc.StatusCode
PATIENCE: Final = 0.8
"""Seconds for a reply of Redis."""
_logger = log.get("fennelq.grpc")


class Call(NamedTuple):
    """A call whose user has the right for it."""

    app: App
    user: User
    who: str
    """The user and the address, for the record of operations."""
    door: Door

    def recorded(self, what: str, *, target: str = "", filter: str = "") -> AwaitedOperation:
        """Around work that changes something: a line of the record of operations before it, and one after it."""
        return self.app.audit.operation(what, target=target[:200], filter=filter, who=self.who, via="grpc")


@dataclass
class Door:
    """Lets calls pass."""

    app: App
    tokens: Tokens | None
    """None: every caller may do everything; the server listens on this machine only."""
    queues: KnownQueues = field(init=False)
    failures: Failures = field(default_factory=Failures)
    waits: Places = field(default_factory=waits)
    streams: Places = field(default_factory=streams)
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server is to end: then waits and streams end."""

    def __post_init__(self) -> None:
        self.queues = KnownQueues(self.app)

    def unary(
        self, right: str, handler: Callable[[Call, Any], Awaitable[Message]], *, changes: bool = False
    ) -> Any:
        """A method that gets a message and returns one. One that changes something takes several steps: it begins only
        when Redis answers."""

        async def answer(request: Any, context: Context) -> Message:
            try:
                call, given = self._call(context, right), _read(request)
                if changes:
                    async with asyncio.timeout(PATIENCE):
                        await self.app.client.converse(now())
                return await handler(call, given)
            except Exception as error:
                await _abort(context, error)
                raise AssertionError from error  # not reached: `abort` raises

        return answer

    def stream(self, right: str, handler: Callable[[Call, Any], AsyncGenerator[Message]]) -> Any:
        """A method that gets a message and returns several."""

        async def answer(request: Any, context: Context) -> AsyncIterator[Message]:
            try:
                async with aclosing(handler(self._call(context, right), _read(request))) as messages:
                    async for message in messages:
                        yield message
            except Exception as error:
                await _abort(context, error)

        return answer

    def gathering(self, right: str, handler: Callable[[Call, AsyncIterator[Any]], Awaitable[Message]]) -> Any:
        """A method that gets several messages and returns one."""

        async def answer(requests: AsyncIterator[Any], context: Context) -> Message:
            try:
                return await handler(self._call(context, right), requests)
            except Exception as error:
                await _abort(context, error)
                raise AssertionError from error  # not reached: `abort` raises

        return answer

    def _call(self, context: Context, right: str) -> Call:
        address = _address(context.peer())
        user = self._user(context, address)
        if not user.can(right):
            raise Refused(Code.PERMISSION_DENIED, f"{user.name} may not {MEANINGS[right]}")
        who = f"{user.name}@{address}"
        shown = who if REASON.fullmatch(who) else ascii(who)[:500]
        return Call(self.app, user, shown, self)

    def _user(self, context: Context, address: str) -> User:
        if self.tokens is None:
            return User("local")
        given = [str(value) for name, value in context.invocation_metadata() or () if name == "authorization"]
        scheme, _, token = (given[0] if len(given) == 1 else "").partition(" ")
        if not given:
            raise Refused(Code.UNAUTHENTICATED, "send the metadata authorization: Bearer TOKEN")
        user = self._of_token(token.strip()) if scheme.lower() == "bearer" else None
        if user is not None:
            return user
        if wait := self.failures.wait(address):
            text = f"too many wrong tokens came from this address: try again in {math.ceil(wait)} s"
            raise Refused(Code.RESOURCE_EXHAUSTED, text)
        self.failures.add(address)
        raise Refused(Code.UNAUTHENTICATED, "the token is wrong: `fennelq token add` makes one")

    def _of_token(self, token: str) -> User | None:
        assert self.tokens is not None
        try:
            return self.tokens.user_of(token)
        except SignInUnavailable as error:
            raise Refused(Code.UNAVAILABLE, str(error)) from None


class Malformed:
    """A message that cannot be read. gRPC itself would answer with a code that means a bug."""


def reader(kind: type[Message]) -> Callable[[bytes], Message | Malformed]:
    """Reads messages of this kind."""

    def read(raw: bytes) -> Message | Malformed:
        try:
            return kind.FromString(raw)
        except (DecodeError, UnicodeDecodeError, ValueError):
            return Malformed()

    return read


def _read(request: Any) -> Any:
    if isinstance(request, Malformed):
        raise Refused(
            Code.INVALID_ARGUMENT, "the message cannot be read: its fields are not those of the proto file"
        )
    return request


async def _abort(context: Context, error: Exception) -> None:
    code = code_of(error)
    if code is Code.INTERNAL:
        _logger.error("call_failed", error=in_a_line(error), traceback=traceback_of(error))
    await context.abort(code, text_of(error))


def _address(peer: str) -> str:
    """`10.0.0.7` of `ipv4:10.0.0.7:5000`."""
    kind, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else kind
