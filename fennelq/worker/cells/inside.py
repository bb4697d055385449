"""The work of a cell: it runs one job after another, until its executor closes the connection."""

from __future__ import annotations

import contextvars
import os
import signal
import socket
import sys
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, cast

from fennelq import log, streams
from fennelq.app import App
from fennelq.context import JobContext, current
from fennelq.errors import PayloadTooLarge, UnknownArgument, UnknownTask
from fennelq.model.job import Delivery, JobFailure
from fennelq.model.outcome import RateLimited, Reject, Retry, Snooze, bad_result, failure_of, seconds_of
from fennelq.model.plan import Plan
from fennelq.model.progress import Progress
from fennelq.model.retry import allows
from fennelq.task import AnyTask
from fennelq.worker.cells import forwarding
from fennelq.worker.cells.frames import CLOSED, LEAVING, PROGRESS, Frame
from fennelq.worker.cells.pair import Pair
from fennelq.worker.running.injecting import call_in_thread
from fennelq.worker.running.signing import Signer
from fennelq.worker.shared import LooplessValues

_logger = log.get("fennelq.worker")
_FIRST_FOR_OOM = "500"


def live(connection: socket.socket, app: App) -> NoReturn:
    """Run the jobs that the executor sends, then end this process."""
    pair = Pair(connection)
    _settle_in(pair)
    cell = Inside(app, pair)
    for frame in pair.frames():
        cell.run(frame)
    cell.leave()
    streams.flush(sys.stdout, sys.stderr)
    os._exit(0)


def _settle_in(pair: Pair) -> None:
    # Its own group, so that the programs that a task has started are killed together with the cell.
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _left_to_executor)
    for stream in (sys.stdout, sys.stderr):
        # Whole lines: a cell that is killed would lose what is buffered.
        with suppress(Exception):
            cast("TextIOWrapper", stream).reconfigure(line_buffering=True)
    with suppress(OSError):
        # When memory runs out, the kernel ends this process rather than the executor.
        Path("/proc/self/oom_score_adj").write_text(_FIRST_FOR_OOM, encoding="ascii")
    forwarding.forward(pair)


class CellRun:
    """A run of a job, as its context sees it in a cell."""

    cancelled: str | None = None
    """Always: a cell that is asked to stop is killed."""

    def __init__(self, delivery: Delivery, pair: Pair) -> None:
        self.delivery, self._pair, self._has_ended = delivery, pair, False

    def report(self, progress: Progress) -> bool:
        """Send this progress to the executor, which writes it."""
        if not self._has_ended:
            self._pair.send({"kind": PROGRESS, "progress": [progress.done, progress.total, progress.note]})
        return False

    def end(self) -> None:
        """Drop later reports. A thread that the task has left behind may send some, which would look like those of the
        next job."""
        self._has_ended = True


class Inside:
    """Runs jobs in this process."""

    def __init__(self, app: App, pair: Pair) -> None:
        self._tasks, self._carried = app.tasks, app.carried
        self._pair, self._shared = pair, LooplessValues()
        self._most_bytes, self._sign = app.settings.max_payload_bytes, Signer(app).signed
        self._process, self._at_alarm = os.getpid(), signal.getsignal(signal.SIGALRM)

    def leave(self) -> None:
        """End what the jobs of this process have shared."""
        try:
            self._shared.leave()
        except BaseException as error:
            _logger.warning("shared_value_failed_to_leave", error=repr(error)[:500])

    def run(self, frame: Frame) -> None:
        """Run the job of this frame, and send its end."""
        head, body = contextvars.copy_context().run(self._ended, frame)
        if os.getpid() != self._process:
            # The task has forked, and its child has returned here. It must not send an end of its own.
            streams.flush(sys.stdout, sys.stderr)
            os._exit(0)
        self._end_timer()
        if not self._pair.send(head, body):
            os._exit(CLOSED)

    def _end_timer(self) -> None:
        """A timer that the task has left behind would end the next job."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._at_alarm)

    def _ended(self, frame: Frame) -> tuple[dict[str, Any], bytes]:
        """The frame that tells how a job ended."""
        delivery = delivery_of(frame)
        plan: Plan | None = None
        try:
            task = self._find(delivery)
            plan = task.plan.overridden(delivery.options)
            args, kwargs = task.calls.decode(delivery.args)
        except UnknownTask as error:
            return self._unfit(error, "unknown_task", delivery)
        except UnknownArgument as error:
            return self._unfit(error, "unknown_argument", delivery)
        except BaseException as error:  # validators of models are the user's code and may raise anything
            return self._unfit(error, "bad_payload", delivery)
        run = CellRun(delivery, self._pair)
        current.set(JobContext(run, plan))
        self._carried.restore(plan.headers)
        try:
            value = self._called(task, args, kwargs)
        except BaseException as error:
            return self._raised(error, plan, delivery)
        finally:
            run.end()
        return self._returned(task, value)

    def _called(self, task: AnyTask, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        injection = task.injection
        if injection is None:
            return task.function(*args, **kwargs)
        return call_in_thread(
            injection,
            injection.recipe,
            [],
            self._leaving,
            task.function,
            args,
            kwargs,
            shared=self._shared,
        )

    def _leaving(self) -> None:
        self._pair.send({"kind": LEAVING})

    def _find(self, delivery: Delivery) -> AnyTask:
        task = self._tasks.get(delivery.task)
        if task is None:
            raise UnknownTask(delivery.task, self._tasks)
        return task

    def _returned(self, task: AnyTask, value: Any) -> tuple[dict[str, Any], bytes]:
        try:
            encoded = task.returns.encode(value)
            if len(encoded) > self._most_bytes:
                raise PayloadTooLarge(f"the result of {task.name}", len(encoded), self._most_bytes)
        except BaseException as error:  # encoding runs the user's code as well
            return _head("raised", self._sign(bad_result(error), task.name, error), again=False), b""
        return {"kind": "returned"}, encoded

    def _unfit(self, error: BaseException, reason: str, delivery: Delivery) -> tuple[dict[str, Any], bytes]:
        failure = failure_of(error, reason)._replace(error_type=type(error).__name__, traceback="")
        return _head("raised", self._sign(failure, delivery.task, error), again=False), b""

    def _raised(self, error: BaseException, plan: Plan, delivery: Delivery) -> tuple[dict[str, Any], bytes]:
        try:
            if isinstance(error, Snooze):
                kind = "rate_limited" if isinstance(error, RateLimited) else "snooze"
                return {"kind": kind, "delay": seconds_of(error), "text": str(error)}, b""
            reason = "rejected" if isinstance(error, Reject) else "failed"
            failure = self._sign(failure_of(error, reason), delivery.task, error)
            if isinstance(error, Reject):
                return _head("reject", failure, again=False), b""
            if isinstance(error, Retry):
                return {**_head("retry", failure, again=True), "delay": error.delay}, b""
            return _head("raised", failure, again=allows(plan.retry, delivery.tries + 1, error)), b""
        except BaseException as broken:  # a class of the user's own may raise when it is looked at
            return _head("raised", self._sign(failure_of(broken), delivery.task, broken), again=False), b""


def head_of(delivery: Delivery) -> dict[str, Any]:
    """The header of the frame that asks a cell to run a job. The arguments are its bytes."""
    fields = delivery._replace(args=b"")._asdict()
    return {"kind": "run", **fields, "args": "", "options": delivery.options.decode()}


def delivery_of(frame: Frame) -> Delivery:
    """The job that a frame asks to run."""
    fields: dict[str, Any] = {name: value for name, value in frame.head.items() if name != "kind"}
    fields |= {"args": frame.body, "options": fields["options"].encode()}
    return Delivery(**fields)


def _head(kind: str, failure: JobFailure, *, again: bool) -> dict[str, Any]:
    return {"kind": kind, "failure": list(failure), "again": again}


def _left_to_executor(_: int, __: FrameType | None) -> None:
    """Does nothing: the executor kills a cell that has to end. Programs that a task starts do not inherit this, as they
    would inherit SIG_IGN."""
