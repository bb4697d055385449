"""What a test may do with its app: run the jobs, let time pass, look at what was sent, let an executor die."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar, Unpack

from fennelq import clock
from fennelq.loops import check_loop
from fennelq.model import units
from fennelq.model.job import JobInfo, Status
from fennelq.model.units import TEN_YEARS, Seconds
from fennelq.testing.clock import now, pass_time
from fennelq.testing.expecting import meets, wanted
from fennelq.testing.found import Found
from fennelq.testing.own_loop import in_a_loop
from fennelq.testing.recording import Recording
from fennelq.testing.running import Running
from fennelq.testing.sent import Expected, SentJob, sent_job
from fennelq.testing.summary import Summary, between
from fennelq.usage import job_given

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.task import AnyTask, Task

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")

_WAITS = (Status.SENT, Status.SCHEDULED, Status.RETRY)


class TestedApp:
    """An app under test: what `Testing` and `BlockingTesting` have in common."""

    __test__: ClassVar = False  # not a class of tests, although its name begins like one

    app: App
    """The app, which reaches the server of the tests for the length of the block."""

    def __init__(self, app: App, running: Running, recording: Recording, expected: set[str]) -> None:
        self.app, self._running, self._recording = app, running, recording
        self._found, self._expected = Found(app), expected

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.app.name} in {self.app.namespace}>"

    @property
    def now(self) -> datetime:
        """The time by the clock of this app in Redis, which `tick` moves."""
        return clock.from_ms(self.app.blocking.ask(now(self.app.namespace)))

    def tick(self, seconds: Seconds) -> None:
        """Let time pass: jobs become due, expire, and results are forgotten, as after so many seconds.

        Only the clock of this app in Redis moves. `time.time()` in your code does not."""
        passing = units.seconds(seconds)
        if not 0 <= passing <= TEN_YEARS:
            raise ValueError(f"tick takes the seconds that pass, from 0 to ten years, not {passing:g}")
        self.app.blocking.ask(pass_time(self.app.namespace, round(passing * 1000)))

    def sent(self, task: AnyTask | None = None) -> list[SentJob]:
        """The jobs that were sent in this block, of this task or of all, in order. They may have ended."""
        calls = list(self._recording.sent.values())
        return [sent_job(call, self.app.tasks) for call in calls if task is None or call.task == task.name]

    def left(self) -> list[JobInfo]:
        """The jobs that have not ended, the oldest first."""
        return self._found.unended()

    def assert_enqueued(
        self,
        task: AnyTask,
        /,
        *args: Any,
        _kwargs: dict[str, Any] | None = None,
        **expected: Unpack[Expected],
    ) -> JobInfo:
        """Check that a job of this task waits, with these arguments if any are given; keyword arguments go into
        `_kwargs`. Returns the job, which may now be left at the end of the block."""
        __tracebackhide__ = True
        like = wanted(task, args, _kwargs or {}, expected)
        waiting = [job for job in self._found.unended() if job.status in _WAITS]
        for job in waiting:
            if meets(job, like, self._found.due_ms(job)):
                self._expected.add(job.id)
                return job
        raise AssertionError(f"no job {like} waits; {self._waiting(waiting)}")

    def check_nothing_left(self) -> None:
        """Raises AssertionError, which names the jobs, when a job has not ended and `assert_enqueued` has not returned
        it. The end of the block calls this."""
        __tracebackhide__ = True
        left = [job for job in self._found.unended() if job.id not in self._expected]
        if left:
            jobs = "1 job is" if len(left) == 1 else f"{len(left)} jobs are"
            raise AssertionError(
                f"{jobs} left at the end of the test:\n{self._found.named(left)}\n"
                "Run what is due with `await t.run_until_idle()`, after `t.tick(seconds)` what is due later; "
                "or expect it with `t.assert_enqueued(…)`; or allow it with `testing(app, leave_jobs=True)`"
            )

    def deliver_twice(self) -> AbstractContextManager[None]:
        """In this block, the first outcome of each job gets lost and the job runs again, as after a crash between the
        end of its function and the write of its outcome. A task that is idempotent passes its tests in here as well."""
        return self._losing_outcomes()

    def eager(self) -> AbstractContextManager[None]:
        """In this block, `delay()` returns when the job has run: in this process, through codec, providers and
        middleware. It does not wait for delays and pauses between tries; a snoozed job stays scheduled."""
        return self._eagerly()

    @contextmanager
    def _losing_outcomes(self) -> Generator[None]:
        self._recording.lose_first_outcomes(True)
        try:
            yield
        finally:
            self._recording.lose_first_outcomes(False)

    @contextmanager
    def _eagerly(self) -> Generator[None]:
        before, self._recording.eager = self._recording.eager, True
        try:
            yield
        finally:
            self._recording.eager = before

    def _waiting(self, jobs: list[JobInfo]) -> str:
        return f"these jobs wait:\n{self._found.named(jobs)}" if jobs else "no job waits"


class Testing(TestedApp):
    """An app under test: `async with testing(app) as t`."""

    @property
    def sync(self) -> BlockingTesting:
        """The same for code without an event loop."""
        return BlockingTesting(self, self._running, self._recording, self._expected)

    async def run_until_idle(self, *, timeout: float = 60.0) -> Summary:
        """Run all jobs that are ready or due, and those that they send, in this event loop.

        It does not wait for jobs that are due later: see `tick`. Raises AssertionError, which names the jobs that run,
        after `timeout` seconds."""
        before, failed = self._found.counted(), len(self._running.failures)
        working = asyncio.create_task(self._running.until_idle(), name="run_until_idle")
        try:
            await asyncio.wait([working], timeout=timeout)
            if not working.done():
                left = f"{self._found.named(self._found.unended())}\nthey wait in:\n{self._running.where_they_wait()}"
                raise AssertionError(f"jobs still run after {timeout:g} s:\n{left}")
        finally:
            working.cancel()
            await asyncio.wait([working])
        await working
        return between(before, self._found.counted(), self._running.failures[failed:])

    async def kill_executor(self, *, during: AnyTask) -> None:
        """Run jobs until one of this task has begun, and then end its executor as `kill -9` does: it settles nothing
        and hands nothing back. Its jobs are recovered at once, and the next `run_until_idle` runs them.

        The function is cancelled where it waits, because it cannot be killed alone; a thread goes on."""
        if not await self._running.kill_during(during):
            raise AssertionError(f"no job of {during.name} has begun; {self._waiting(self.left())}")

    async def call(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a task as a worker does, with its providers, middleware and timeout, but at once and not through Redis.
        Returns what the task returns and raises what it raises; there are no retries."""
        value: R = await self._running.call(job_given("t.call", task.job(*args, **kwargs)))
        return value


class BlockingTesting(TestedApp):
    """`Testing` for code without an event loop: `with testing(app) as t`. Jobs run in a loop of their own."""

    def __init__(self, testing: Testing, running: Running, recording: Recording, expected: set[str]) -> None:
        super().__init__(testing.app, running, recording, expected)
        self._testing = testing

    def run_until_idle(self, *, timeout: float = 60.0) -> Summary:
        """Run all jobs that are ready or due, and those that they send. It does not wait for jobs due later."""
        return self._run("run_until_idle", lambda: self._testing.run_until_idle(timeout=timeout))

    def kill_executor(self, *, during: AnyTask) -> None:
        """Run jobs until one of this task has begun, end its executor as `kill -9` does, and recover its jobs."""
        self._run("kill_executor", lambda: self._testing.kill_executor(during=during))

    def call(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a task as a worker does, with its providers, middleware and timeout, but not through Redis."""
        return self._run("call", lambda: self._testing.call(task, *args, **kwargs))

    def _run(self, method: str, work: Callable[[], Coroutine[Any, Any, A]]) -> A:
        check_loop(f"t.sync.{method}", f"await t.{method}(…)")

        async def run() -> A:
            async with self.app:  # closes the connections of this loop
                return await work()

        return in_a_loop(run)
