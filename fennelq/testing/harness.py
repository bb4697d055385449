"""What a test may do with its app: run the jobs, let time pass, look at what was sent, let an executor die."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar, Unpack

from fennelq.loops import check_loop
from fennelq.model import units
from fennelq.model.job import JobInfo, Status
from fennelq.model.units import TEN_YEARS, Seconds
from fennelq.testing.clock import pass_time
from fennelq.testing.expecting import meets, wanted
from fennelq.testing.found import Found
from fennelq.testing.own_loop import in_a_loop
from fennelq.testing.running import Running
from fennelq.testing.sent import Expected, SentJob
from fennelq.testing.summary import Summary
from fennelq.testing.wiring import TestedWiring
from fennelq.usage import job_given

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.task import AnyTask, Task

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")

_WAITS = (Status.SENT, Status.SCHEDULED, Status.RETRY)
_POLL = 0.005


class Testing:
    """An app under test: `async with testing(app) as t`."""

    __test__: ClassVar = False  # not a class of tests, although its name begins like one

    app: App
    """The app, which reaches the server of the tests for the length of the block."""

    def __init__(self, app: App, wiring: TestedWiring) -> None:
        self.app, self._recording = app, wiring.recording
        self._found, self._running = Found(app), Running(app, wiring)
        self._expected: set[str] = set()

    def __repr__(self) -> str:
        return f"<Testing {self.app.name} in {self.app.namespace}>"

    @property
    def sync(self) -> BlockingTesting:
        """The same for code without an event loop."""
        return BlockingTesting(self)

    # Running

    async def run_until_idle(self, *, timeout: float = 60.0) -> Summary:
        """Run all jobs that are ready or due, and those that they send, in this event loop.

        Jobs that are due later are not waited for: see `tick`. Raises AssertionError, which names the jobs that run,
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
        return Summary.between(before, self._found.counted(), self._running.failures[failed:])

    async def kill_executor(self, *, during: AnyTask) -> None:
        """Run jobs until one of this task has begun, and then end its executor without a word, as `kill -9` does: it
        settles nothing and hands nothing back. Its jobs are recovered at once, and the next `run_until_idle` runs them.

        The function is cancelled where it waits, because it cannot be killed alone; a thread goes on."""
        if not await self._running.kill_during(during):
            left = self._found.unended()
            waiting = f"these jobs wait:\n{self._found.named(left)}" if left else "no job waits"
            raise AssertionError(f"no job of {during.name} has begun; {waiting}")

    async def call(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a task as a worker does, with its providers, middleware and timeout, but at once and not through Redis.
        Returns what the task returns and raises what it raises; there are no retries."""
        value: R = await self._running.call(job_given("t.call", task.job(*args, **kwargs)))
        return value

    # Time

    def tick(self, seconds: Seconds) -> None:
        """Let time pass: jobs become due, expire, and results are forgotten, as after so many seconds.

        Only the clock of this app in Redis moves. `time.time()` in your code does not."""
        passing = units.seconds(seconds)
        if not 0 <= passing <= TEN_YEARS:
            raise ValueError(f"tick takes the seconds that pass, from 0 to ten years, not {passing:g}")
        self.app.blocking.ask(pass_time(self.app.namespace, round(passing * 1000)))

    # Looking

    def sent(self, task: AnyTask | None = None) -> list[SentJob]:
        """The jobs that were sent in this test, of this task or of all, in order. They may have ended."""
        calls = list(self._recording.sent.values())
        return [SentJob.of(call, self.app.tasks) for call in calls if task is None or call.task == task.name]

    def assert_enqueued(
        self,
        task: AnyTask,
        /,
        *args: Any,
        _kwargs: dict[str, Any] | None = None,
        **expected: Unpack[Expected],
    ) -> JobInfo:
        """Check that a job of this task waits, with these arguments, if any are given; keyword arguments go into
        `_kwargs`. Returns the job, which may now be left at the end of the test."""
        __tracebackhide__ = True
        like = wanted(task, args, _kwargs or {}, expected)
        unended = self._found.unended()
        waiting = [job for job in unended if job.status in _WAITS]
        for job in waiting:
            if meets(job, like, self._found.due_ms(job)):
                self._expected.add(job.id)
                return job
        there = f"these jobs wait:\n{self._found.named(waiting)}" if waiting else "no job waits"
        raise AssertionError(f"no job {like} waits; {there}")

    def left(self) -> list[JobInfo]:
        """The jobs that have not ended, the oldest first."""
        return self._found.unended()

    def check_nothing_left(self) -> None:
        """Raises AssertionError, which names the jobs, when a job has not ended that `assert_enqueued` has not found.
        The end of the block calls it."""
        __tracebackhide__ = True
        left = [job for job in self._found.unended() if job.id not in self._expected]
        if left:
            jobs = "1 job is" if len(left) == 1 else f"{len(left)} jobs are"
            raise AssertionError(
                f"{jobs} left at the end of the test:\n{self._found.named(left)}\n"
                "Run what is due with `await t.run_until_idle()`, after `t.tick(seconds)` what is due later; "
                "or expect it with `t.assert_enqueued(…)`; or allow it with `testing(app, leave_jobs=True)`"
            )

    # Trouble

    @contextmanager
    def deliver_twice(self) -> Generator[None]:
        """In this block, the first outcome of each job gets lost and the job runs again, as after a crash between the
        end of its function and the write of its outcome. A task that is idempotent passes its tests in here as well."""
        self._recording.lose_first_outcomes(True)
        try:
            yield
        finally:
            self._recording.lose_first_outcomes(False)

    @contextmanager
    def eager(self) -> Generator[None]:
        """In this block, `delay()` returns when the job has run: in this process, through codec, providers and
        middleware. A delay and the pauses between tries are not waited for; a snoozed job stays scheduled."""
        before, self._recording.eager = self._recording.eager, True
        try:
            yield
        finally:
            self._recording.eager = before

    async def run_now(self, ids: Sequence[str]) -> None:
        """Run these jobs until each has ended, without waiting for due times. A job that was snoozed is left."""
        for job_id in ids:
            while (job := await self.app.client.info(job_id)) is not None and not job.status.ended:
                if job.status is Status.EXECUTING:
                    await asyncio.sleep(_POLL)  # another executor of this test has it
                elif job.status is Status.SCHEDULED and job.started_at is not None:
                    break
                else:
                    self._found.bring_forward(job_id)
                    await self._running.until_idle()


class BlockingTesting:
    """`Testing` for code without an event loop: `with testing(app) as t`. Jobs run in a loop of their own."""

    def __init__(self, testing: Testing) -> None:
        self._testing = testing
        self.app = testing.app
        self.tick, self.sent = testing.tick, testing.sent
        self.assert_enqueued, self.left = testing.assert_enqueued, testing.left
        self.deliver_twice, self.eager = testing.deliver_twice, testing.eager

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._testing)[1:]}"

    def run_until_idle(self, *, timeout: float = 60.0) -> Summary:
        """Run all jobs that are ready or due, and those that they send. Returns when no job is left that is due."""
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
