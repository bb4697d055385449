"""Checks Redis before a worker starts, so that a wrong configuration fails now and not later in production.

While Redis cannot be reached, it retries. A configuration that cannot work ends the worker.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from fennelq import log
from fennelq.app import App
from fennelq.broker import verbs
from fennelq.broker.diagnosis import diagnose, outdated
from fennelq.broker.trouble import ReplyError, Trouble, classify
from fennelq.broker.verb import Command, as_is, text
from fennelq.errors import ConfigurationError
from fennelq.model.routing import Routing, fits
from fennelq.worker.outage import Outage

_logger = log.get("fennelq.worker")
_RETRY_EVERY = 0.5
THREAD = "fennelq-preflight"

T = TypeVar("T")


async def redis_replies(app: App, stop: asyncio.Event, *, force: bool = False) -> str | None:
    """Wait until Redis replies, and check it; returns which server it is, or None when `stop` is set before.

    Raises ConfigurationError when fennelq cannot use this Redis, or when it would lose jobs; `force` turns the latter
    into a warning.
    """
    outage = Outage(app.address, "waiting_for_redis")
    while not stop.is_set():
        try:
            server = await _unless(stop, lambda: check(app, force=force))
        except Exception as error:
            if not classify(error).passes:
                raise
            outage.warn("preflight", error)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _RETRY_EVERY)
        else:
            if server is not None:
                outage.over("preflight")
            return server
    return None


async def _unless(stop: asyncio.Event, work: Callable[[], T]) -> T | None:
    """Run `work` in a thread; returns its result, or None when `stop` is set before."""
    result: Future[T] = Future()
    _aside(lambda: _fill(result, work))
    done, waiting = asyncio.wrap_future(result), asyncio.create_task(stop.wait())
    try:
        both: list[asyncio.Future[Any]] = [done, waiting]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        return done.result() if done.done() else None
    finally:
        done.cancel()
        waiting.cancel()


def _aside(work: Callable[[], object]) -> None:
    """Run `work` in a daemon thread, so that nothing waits for it, not even the exit of the process: resolving a host
    name may take minutes."""
    threading.Thread(target=work, name=THREAD, daemon=True).start()


def _fill(result: Future[T], work: Callable[[], T]) -> None:
    result.set_running_or_notify_cancel()
    try:
        result.set_result(work())
    except BaseException as error:
        result.set_exception(error)


def check(app: App, *, force: bool = False) -> str:
    """Check the server; returns its kind and version. Raises ConfigurationError when it cannot be used, and the
    original error when it cannot be reached now."""
    try:
        server = _server(app)
        problem = _too_old(app, server) or _evicts(app)
        if problem is not None and not force:
            raise ConfigurationError(f"{problem} (--force starts the worker all the same)")
        _may_be_used(app)
    except Exception as error:
        if classify(error) is Trouble.FATAL:
            raise ConfigurationError(diagnose(app.address, error).sentence) from None
        raise
    if problem is not None:
        _logger.warning("forced", problem=problem)
    return verbs.server.named(server) or "unknown"


def warn_of_unknown_queues(app: App, queues: str | None) -> None:
    """Warn when `-q` names queues that neither a task nor Redis has: most often the name is misspelt.

    Returns at once, and warns from a thread: if Redis hangs now, neither the first executor nor a stop waits for it.
    """
    wanted = Routing.parse(queues)
    if wanted.weights or wanted.patterns:
        _aside(lambda: _warn_of_unknown(app, wanted))


def _warn_of_unknown(app: App, wanted: Routing) -> None:
    with suppress(Exception):  # start in spite of an outage: the executors report it
        known = app.blocking.ask(verbs.queues.known_queues(app.namespace))
        known |= {app.settings.default_queue, *(task.queue for task in app.tasks.values())}
        unknown = {*wanted.weights} - known
        unknown.update(name for name in wanted.patterns if not any(fits(queue, name) for queue in known))
        if unknown:
            _logger.warning(
                "queues_unknown",
                unknown=", ".join(sorted(unknown)),
                known=", ".join(sorted(known)),
                why="no task of the app names these queues, and no job was ever sent to them",
            )


def _server(app: App) -> dict[str, str]:
    """The server's INFO; empty when this user of Redis may not call it."""
    try:
        return app.blocking.ask(verbs.server.server())
    except ReplyError as error:
        if error.word != "NOPERM":
            raise
    return {}


def _may_be_used(app: App) -> None:
    """Raises when this user of Redis may not run scripts or read the keys of the app, because every job needs both."""
    app.blocking.ask(verbs.queues.known_queues(app.namespace))
    app.blocking.ask(Command(["EVAL", "return 1", 0], as_is))


def _too_old(app: App, server: dict[str, str]) -> str | None:
    problem = outdated(app.address, server)
    return problem.sentence if problem is not None else None


def _evicts(app: App) -> str | None:
    def read(reply: Any) -> str:
        return text(reply[1]) if len(reply) > 1 else "noeviction"

    try:
        policy = app.blocking.ask(Command(["CONFIG", "GET", "maxmemory-policy"], read))
    except Exception as error:
        # Many hosted servers forbid CONFIG. Then the policy cannot be checked here.
        if classify(error) in (Trouble.FATAL, Trouble.BUG):
            return None
        raise
    if policy == "noeviction":
        return None
    return (
        f"Redis at {app.address.shown} may evict jobs: its maxmemory-policy is {policy}; "
        "set it to noeviction (CONFIG SET maxmemory-policy noeviction)"
    )
