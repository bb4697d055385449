"""From the command line to an app that is connected."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fennelq.broker import verbs
from fennelq.broker.diagnosis import diagnose, outdated
from fennelq.broker.trouble import NoReply, ReplyError, Trouble, classify

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.broker.broker import Broker
    from fennelq.worker.processes.discovery import FoundApp

T = TypeVar("T")


def found(app: str | None, app_dir: Path | None) -> FoundApp:
    """The app that is meant."""
    from fennelq.worker.processes.discovery import find_app

    return find_app(app, app_dir)


def with_app(app: App, work: Callable[[App], Awaitable[T]]) -> T:
    """What `work` answers, connected to the app's Redis; raises BrokerUnavailable at once when there is none."""
    return asyncio.run(_connected(app, work))


async def _connected(app: App, work: Callable[[App], Awaitable[T]]) -> T:
    async with app:
        await _reach(app)
        return await work(app)


async def _reach(app: App) -> None:
    """Raises BrokerUnavailable, without a second attempt, when the server cannot be used."""
    try:
        problem = outdated(app.address, await _server(app.client.broker))
    except Exception as error:
        if classify(error) is Trouble.BUG:
            raise
        raise diagnose(app.address, error).error() from error
    if problem is not None:
        raise problem.error()


async def _server(broker: Broker) -> dict[str, str]:
    """The facts of the server: none, when this user may not ask for them, and may use it otherwise."""
    try:
        with suppress(NoReply):
            return await broker.ask(verbs.server.server())
        return await broker.ask(verbs.server.server())  # the second attempt finds out why
    except ReplyError as error:
        if error.word != "NOPERM":
            raise
    await broker.ask(verbs.server.now())
    return {}
