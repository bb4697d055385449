"""Finds the app that the command line names, and connects to its Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from fennelq.broker import verbs
from fennelq.broker.diagnosis import diagnose, outdated
from fennelq.broker.trouble import NoReply, ReplyError, Trouble, classify
from fennelq.cli import output
from fennelq.cli.auditing import Outcome, recorded
from fennelq.cli.options import AppDir, AppPath

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.broker.broker import Broker
    from fennelq.redaction import Redaction
    from fennelq.worker.processes.discovery import FoundApp

T = TypeVar("T")


def _number(result: object) -> Outcome:
    return Outcome(result if isinstance(result, int) else None)


@dataclass(frozen=True)
class Session:
    """The app of a command, and the connection to its Redis."""

    app: AppPath = None
    app_dir: AppDir = None

    @cached_property
    def found(self) -> FoundApp:
        """The app, and how it was found; raises ConfigurationError when no app is found."""
        from fennelq.worker.processes.discovery import find_app

        return find_app(self.app, self.app_dir)

    @property
    def redaction(self) -> Redaction:
        """The rules by which the app hides secrets."""
        return self.found.app.redaction

    def run(self, work: Callable[[App], Awaitable[T]]) -> T:
        """Run `work` with a connection to the app's Redis; returns its result. Raises BrokerUnavailable without
        retries."""
        return asyncio.run(_connected(self.found.app, work))

    def change(
        self,
        work: Callable[[App], Awaitable[T]],
        *,
        planned: int | None = None,
        outcome: Callable[[T], Outcome] = _number,
    ) -> T:
        """As `run`, for work that changes something: it is recorded for `fennelq audit`, before and after. `planned` is
        the number of jobs that it is going to change, and `outcome` describes what it returned."""

        async def recording(app: App) -> T:
            result: T = await recorded(app, work, planned, outcome, output.note)
            return result

        return self.run(recording)


async def _connected(app: App, work: Callable[[App], Awaitable[T]]) -> T:
    async with app:
        await _reach(app)
        try:
            return await work(app)
        except ReplyError as error:
            raise diagnose(app.address, error).error() from error


async def _reach(app: App) -> None:
    """Raises BrokerUnavailable when the server cannot be used. It does not retry."""
    try:
        problem = outdated(app.address, await _server(app.client.broker))
    except Exception as error:
        if classify(error) is Trouble.BUG:
            raise
        raise diagnose(app.address, error).error() from error
    if problem is not None:
        raise problem.error()


async def _server(broker: Broker) -> dict[str, str]:
    """The server's INFO; empty when this user may use the server but may not call INFO."""
    try:
        with suppress(NoReply):
            return await broker.ask(verbs.server.server())
        return await broker.ask(verbs.server.server())  # the next connection after a NoReply finds the cause
    except ReplyError as error:
        if error.word != "NOPERM":
            raise
    await broker.ask(verbs.server.now())
    return {}
