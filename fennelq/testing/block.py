"""`testing(app)`: the block in which an app reaches a server for tests, in a namespace of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from fennelq.connections import rewired
from fennelq.declaring.schedules import Declared
from fennelq.errors import BrokerUnavailable, UsageError
from fennelq.testing.found import Found
from fennelq.testing.harness import BlockingTesting, Testing
from fennelq.testing.recording import Recording
from fennelq.testing.running import Running
from fennelq.testing.server import session_server
from fennelq.testing.wiring import TestedWiring

if TYPE_CHECKING:
    from fennelq.app import App

_LONGEST_NAME = 100
_NEVER = 30 * 86400.0
"""Seconds for which a debugger may stop a test: the executor is not replaced meanwhile."""


class testing:  # noqa: N801 - used like a function
    """Point an app to a server for tests, in a namespace of its own: `async with testing(app) as t`.

    At the end the keys of the namespace are removed, and the app is as before. A job that is left fails the test.
    """

    __test__: ClassVar = False

    def __init__(
        self,
        app: App,
        *,
        redis_url: str | None = None,
        overrides: Mapping[Callable[..., Any], Callable[..., Any]] | None = None,
        schedules: bool = False,
        leave_jobs: bool = False,
    ) -> None:
        """Without a `redis_url`, the server is an embedded one of this test session. `overrides` are providers in place
        of others, as in `app.overrides`. With `schedules`, the recurring
        jobs that the code declares run as well. With `leave_jobs`, jobs may be left at the end."""
        self._app, self._redis_url, self._overrides = app, redis_url, overrides or {}
        self._schedules, self._leave_jobs = schedules, leave_jobs
        self._ending = ExitStack()
        self._testing: Testing | None = None
        self._running: Running | None = None

    def open(self) -> Testing:
        """Enter the block. `close` leaves it."""
        if self._testing is not None:
            raise UsageError("this testing(…) is entered already: make one for each block")
        app = self._app
        namespace = f"{app.name[:_LONGEST_NAME]}-test-{os.urandom(4).hex()}"
        place = {"redis_url": self._redis_url or session_server().url, "namespace": namespace}
        settings = app.settings.model_copy(update={**place, "stall_timeout": _NEVER})
        recording = Recording()
        wiring = TestedWiring(namespace, recording, self._run_now)
        with ExitStack() as entered:
            entered.enter_context(app.overrides(self._overrides))
            entered.callback(wiring.close)
            entered.enter_context(rewired(app, settings, namespace, wiring))
            if not self._schedules:
                entered.enter_context(_without_schedules(app))
            _ = app.address  # raises a mistake in the URL here, and not with the first job
            self._ending = entered.pop_all()
        self._running = Running(app, wiring)
        self._testing = Testing(app, self._running, recording, set())
        return self._testing

    def close(self, *, failed: bool = False) -> None:
        """Leave the block: check that no job is left, unless the test has `failed`, and remove the keys."""
        __tracebackhide__ = True
        testing, self._testing = self._testing, None
        if testing is None:
            return
        with self._ending:
            try:
                if not failed and not self._leave_jobs:
                    testing.check_nothing_left()
            finally:
                # After a test that has failed, the error of the test is the one to raise: its server may be away.
                with suppress(BrokerUnavailable) if failed else nullcontext():
                    Found(self._app).remove_keys()

    async def _run_now(self, ids: Sequence[str]) -> None:
        if self._running is not None:
            await self._running.now(ids)

    async def __aenter__(self) -> Testing:
        return self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        __tracebackhide__ = True
        try:
            await self._app.close()
        finally:
            self.close(failed=error is not None)

    def __enter__(self) -> BlockingTesting:
        return self.open().sync

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        __tracebackhide__ = True
        self.close(failed=error is not None)


@contextmanager
def _without_schedules(app: App) -> Generator[None]:
    before, app.declared = app.declared, Declared()
    try:
        yield
    finally:
        app.declared = before
