"""From the command line to an app that is connected."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fennelq.broker.trouble import Trouble, classify
from fennelq.broker.verbs import census
from fennelq.cli.exits import Exit, Problem
from fennelq.errors import BrokerUnavailable

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.worker.discovery import FoundApp

T = TypeVar("T")

_PLAINLY: dict[type[OSError], str] = {
    ConnectionRefusedError: "connection refused",
    FileNotFoundError: "there is no such socket",
    socket.gaierror: "the host is unknown",
}


def found(app: str | None, app_dir: Path | None) -> FoundApp:
    """The app that is meant."""
    from fennelq.worker.discovery import find_app

    return find_app(app, app_dir)


def with_app(app: App, work: Callable[[App], Awaitable[T]]) -> T:
    """What `work` answers, connected to the app's Redis. People are told at once when there is none."""
    return asyncio.run(_connected(app, work))


async def _connected(app: App, work: Callable[[App], Awaitable[T]]) -> T:
    async with app:
        try:
            await _reach(app)
            return await work(app)
        except BrokerUnavailable as error:
            sentence = f"Redis at {app.address.shown} is not available: {error.reason}"
            raise Problem(sentence, Exit.UNAVAILABLE) from error


async def _reach(app: App) -> None:
    try:
        await app.client.broker.ask(census.now())
    except Exception as error:
        if classify(error) is Trouble.BUG:
            raise
        plain = next((text for kind, text in _PLAINLY.items() if isinstance(error, kind)), str(error))
        raise BrokerUnavailable(plain or type(error).__name__) from error
