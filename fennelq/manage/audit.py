"""The record of operations: who has changed what, from where, how much, and how it ended.

An operation has two lines in a stream, which share an id: one is written before it begins, the other one when it has
ended. The second line repeats the facts of the first one, so that it can be read without it. An operation without a
second line is under way, or its process has crashed.

If a line cannot be written, the operation goes on, and a warning is logged: an operator must be able to act even while
the record does not work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.keys import AppKeys
from fennelq.broker.talk import Finding, Finds, Found, Talk, ask, at_most
from fennelq.broker.trouble import ReplyError
from fennelq.broker.verbs.audit import Line
from fennelq.errors import BrokerUnavailable, ConfigurationError
from fennelq.loops import check_loop
from fennelq.manage.audit_entry import AuditEntry, AuditState, entry_of, line_of
from fennelq.manage.dead.search import Moment, moment_ms
from fennelq.manage.offered import Awaiting, Blocking, Family, Operation, Scan
from fennelq.manage.queues.pausing import this_user
from fennelq.model.checks import check_line
from fennelq.model.job import new_key
from fennelq.model.units import epoch_ms
from fennelq.sync import waiting as sync_waiting

if TYPE_CHECKING:
    from fennelq.app import App

_PAGE: Final = 500
_LAST_LINE: Final = 5.0
"""Seconds for the second line. The operation is over: an operator does not wait longer for its record."""
_UNWRITTEN: Final = (BrokerUnavailable, ReplyError, OSError, EOFError)


class AuditedOperation:
    """An operation that is recorded: a line before it, and a line with its outcome after it."""

    def __init__(self, app: App, entry: AuditEntry, warn: Callable[[str], None]) -> None:
        self._app, self._entry, self._warn = app, entry, warn
        self._written = False

    def ended(
        self,
        done: int | None = None,
        outcome: str = "",
        *,
        before: str = "",
        after: str = "",
        state: AuditState = "done",
    ) -> None:
        """Set what the second line contains: how much was changed, the outcome in words, values before and after."""
        self._entry = replace(
            self._entry, done=done, outcome=outcome, before=before, after=after, state=state
        )

    def _end(self, error: BaseException | None) -> None:
        """Set the outcome of an operation that did not call `ended`."""
        if self._entry.state != "not finished":
            return
        if error is None:
            self.ended()
        elif isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
            self.ended(state="interrupted")
        else:
            self.ended(outcome=f"{type(error).__name__}: {error}", state="failed")

    def _first(self) -> Talk[None]:
        line = yield from ask(verbs.audit.note(_keys(self._app), line_of("begin", self._entry)))
        self._entry = replace(self._entry, at=clock.from_ms(Line(line, {}).at_ms))
        self._written = True

    def _second(self) -> Talk[None]:
        note = verbs.audit.note(_keys(self._app), line_of("end", self._entry))
        yield from at_most(_LAST_LINE, ask(note))

    def _not_written(self, error: BaseException) -> None:
        reason = f"Redis {error.reason}" if isinstance(error, BrokerUnavailable) else str(error)
        self._warn(f"{self._entry.what} is not recorded for `fennelq audit`: {reason}")


class AwaitedOperation(AuditedOperation):
    """The block `async with app.audit.operation(…)`."""

    async def __aenter__(self) -> Self:
        """Write that the operation begins."""
        try:
            await self._app.client.converse(self._first())
        except _UNWRITTEN as error:
            self._not_written(error)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error)
        if self._written:
            try:
                await self._app.client.converse(self._second())
            except _UNWRITTEN as refusal:
                self._not_written(refusal)


class BlockingOperation(AuditedOperation):
    """The block `with app.sync.audit.operation(…)`."""

    def __enter__(self) -> Self:
        """Write that the operation begins."""
        try:
            sync_waiting.converse(self._app, self._first())
        except _UNWRITTEN as error:
            self._not_written(error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error)
        if self._written:
            try:
                sync_waiting.converse(self._app, self._second())
            except _UNWRITTEN as refusal:
                self._not_written(refusal)


# Defined here, because inside the class `list` is a method.
Entries = list[AuditEntry]


class AuditTalks(Family):
    """The operations on the record."""

    _attribute, _item = "audit", "entry"

    @Operation
    def list(
        self,
        *,
        limit: int | None = 100,
        since: Moment | None = None,
        until: Moment | None = None,
        who: str | None = None,
        what: str | None = None,
    ) -> Talk[Entries]:
        """The recorded operations that match every filter, the newest first; `limit=None` returns all.

        `who` is a user (`ada`), a host (`web-1`) or both (`ada@web-1`); `what` is an operation (`dlq replay`) or the
        first word of several (`dlq`). Redis keeps about 5,000 operations, the newest ones.
        """
        found: Entries = []
        entries = Finds(self._found(since, until, who, what))
        while (limit is None or len(found) < limit) and (entry := (yield from entries.next())) is not None:
            found.append(entry)
        return found

    @Scan
    def scan(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        who: str | None = None,
        what: str | None = None,
    ) -> Finding[AuditEntry]:
        """Yields the recorded operations that match every filter, the newest first, read a page at a time."""
        return self._found(since, until, who, what)

    def _found(
        self, since: Moment | None, until: Moment | None, who: str | None, what: str | None
    ) -> Finding[AuditEntry]:
        oldest, newest = yield from self._between(since, until)
        read = Finds(_entries(self._app, oldest))
        while (entry := (yield from read.next())) is not None:
            if matches(entry, who, what) and epoch_ms(entry.at) <= newest:
                yield Found(entry)

    def _between(self, since: Moment | None, until: Moment | None) -> Talk[tuple[int, float]]:
        now_ms = yield from ask(verbs.server.now())
        oldest = 0 if since is None else moment_ms(since, now_ms)
        if oldest > now_ms:
            raise ConfigurationError("since is in the future: it must be a time before now")
        return max(0, oldest), float("inf") if until is None else moment_ms(until, now_ms)


class Audit(AuditTalks, Awaiting):
    """The record of operations: who has changed what. `fennelq` commands write it, and your code can."""

    def operation(
        self,
        what: str,
        *,
        target: str = "",
        filter: str = "",
        planned: int | None = None,
        who: str | None = None,
        via: str = "api",
    ) -> AwaitedOperation:
        """Record an operation of your own program: `async with app.audit.operation("dlq replay") as operation:`.

        It is recorded before the block runs, and again after it, with the outcome: an exception, or what
        `operation.ended(…)` was given. `who` is the user and the host of this process by default.
        """
        entry = begun(what, target, filter, planned, who, via)
        return AwaitedOperation(self._app, entry, _log)


class BlockingAudit(AuditTalks, Blocking):
    """The record of operations, for code without an event loop: `app.sync.audit`."""

    def operation(
        self,
        what: str,
        *,
        target: str = "",
        filter: str = "",
        planned: int | None = None,
        who: str | None = None,
        via: str = "api",
    ) -> BlockingOperation:
        """Record an operation of your own program: `with app.sync.audit.operation("dlq replay") as operation:`.

        It is recorded before the block runs, and again after it, as `app.audit.operation` does it.
        """
        check_loop("app.sync.audit.operation", "async with app.audit.operation(…)")
        entry = begun(what, target, filter, planned, who, via)
        return BlockingOperation(self._app, entry, _log)


def matches(entry: AuditEntry, who: str | None, what: str | None) -> bool:
    """Whether an operation is of this user or host, and has this name or is of this family."""
    return _is_of(entry.who, who) and _begins(entry.what, what)


def operations_since(app: App, oldest_ms: int) -> Talk[Entries]:
    """The operations with a line that is not older than this."""
    found: Entries = []
    read = Finds(_entries(app, oldest_ms))
    while (entry := (yield from read.next())) is not None:
        found.append(entry)
    return found


def _entries(app: App, oldest: int) -> Finding[AuditEntry]:
    """Yields the operations with a line that is not older than this. Those whose first line is older, or was
    removed, come last."""
    ended: dict[str, Line] = {}
    known = set[str]()
    lines = Finds(_lines(app, oldest))
    while (line := (yield from lines.next())) is not None:
        key = line.fields.get("id", line.entry)
        if line.fields.get("phase") == "end":
            ended.setdefault(key, line)
        elif key not in known:  # a first line that was sent again after a lost reply is there twice
            known.add(key)
            yield Found(entry_of(key, line, ended.pop(key, None)))
    for key, line in ended.items():
        if key not in known:
            yield Found(entry_of(key, None, line))


def _lines(app: App, oldest: int) -> Finding[Line]:
    before = ""
    while page := (yield from ask(verbs.audit.lines(_keys(app), before, f"{oldest}-0", _PAGE))):
        for line in page:
            yield Found(line)
        before = page[-1].entry


def begun(what: str, target: str, filter: str, planned: int | None, who: str | None, via: str) -> AuditEntry:
    """An operation that begins now. Raises ConfigurationError when a name is empty or has several lines."""
    for name, text in (("what", what), ("via", via), ("who", who or "")):
        if text or name != "who":
            check_line(name, text)
    return AuditEntry(
        id=new_key(),
        at=clock.from_ms(clock.wall_ms()),
        who=this_user() if who is None else who,
        via=via,
        what=what,
        target=target,
        filter=filter,
        planned=planned,
    )


def _keys(app: App) -> AppKeys:
    return AppKeys(app.namespace)


def _is_of(who: str, wanted: str | None) -> bool:
    user, _, host = who.partition("@")
    return wanted is None or wanted in (who, user, host)


def _begins(what: str, wanted: str | None) -> bool:
    return wanted is None or what == wanted or what.startswith(f"{wanted} ")


def _log(warning: str) -> None:
    from fennelq import log

    _logger = log.get("fennelq.audit")
    _logger.warning("operation_not_recorded", why=warning)
