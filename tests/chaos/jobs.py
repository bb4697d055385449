"""The app whose workers are killed. Each run writes its start and its end to the ledger of the test."""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import os
import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import fennelq
from fennelq import App, RetryPolicy, current_job
from fennelq.task import AnyTask
from tests.kit.ledger import LEDGER_VARIABLE, Ledger

NAME: Final = "chaos"


@cache
def _ledger() -> Ledger | None:
    return Ledger.inherited() if LEDGER_VARIABLE in os.environ else None


@contextmanager
def written_down(note: str = "") -> Generator[None]:
    """A run: its end is written only when nothing was raised. The token is the fence."""
    job, ledger = current_job(), _ledger()
    if ledger is None:
        yield
        return
    ledger.start(job.id, str(job.fence), note)
    yield
    ledger.end(job.id, str(job.fence), note)


def receipt(job_id: str, argument: float) -> str:
    """What a call returns: no other call returns the same, so a result that went to another job is noticed."""
    return f"{job_id}({float(argument)!r})"


def _receipt(argument: float) -> str:
    return receipt(current_job().id, argument)


async def work(milliseconds: float) -> str:
    """Takes that long."""
    with written_down():
        await asyncio.sleep(milliseconds / 1000)
    return _receipt(milliseconds)


async def long_at_first(milliseconds: float) -> str:
    """Takes a minute when it starts for the first time, and that long from then on."""
    with written_down():
        await asyncio.sleep(60 if current_job().fence == 1 else milliseconds / 1000)
    return _receipt(milliseconds)


async def flaky(milliseconds: float) -> str:
    """Its first try fails."""
    with written_down():
        await asyncio.sleep(milliseconds / 1000)
        if current_job().tries == 1:
            raise ConnectionError("the first try fails")
    return _receipt(milliseconds)


async def for_account(milliseconds: float, account: int) -> str:
    """Takes that long; one at a time for each account."""
    with written_down(str(account)):
        await asyncio.sleep(milliseconds / 1000)
    return _receipt(milliseconds)


async def paced(milliseconds: float) -> str:
    """Takes that long; ten of them start per second."""
    with written_down("paced"):
        await asyncio.sleep(milliseconds / 1000)
    return _receipt(milliseconds)


async def due(at_ms: int) -> str:
    """Writes down how many milliseconds late it has started, by this machine's monotonic clock."""
    late = round(time.monotonic() * 1000) - at_ms
    with written_down(str(late)):
        return _receipt(at_ms)


async def block(seconds: float) -> str:
    """Blocks the loop, as a call does that should have been awaited."""
    with written_down():
        time.sleep(seconds)
    return _receipt(seconds)


async def spin(seconds: float) -> str:
    """Blocks the loop with Python code."""
    with written_down():
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass
    return _receipt(seconds)


async def hog_at_first(seconds: float) -> str:
    """Blocks every thread of the process that starts it first, in one call of C that keeps the interpreter's lock."""
    with written_down():
        if current_job().fence == 1:
            pace = 5_000_000
            began = time.monotonic()
            sum(range(pace))
            per_second = pace / (time.monotonic() - began)
            sum(range(round(per_second * seconds)))
    return _receipt(seconds)


async def poison(how: str) -> None:
    """Kills its process."""
    with written_down(how):
        dying = _DEATHS[how]()
        await (dying if inspect.isawaitable(dying) else asyncio.sleep(60))


def in_thread(seconds: float) -> str:
    """A plain function, in a thread that cannot be stopped."""
    with written_down():
        time.sleep(seconds)
    return _receipt(seconds)


async def unprintable() -> Any:
    """Its result cannot be encoded."""
    with written_down():
        return {1: object()}


async def leave(how: str) -> str:
    """Does what would end an event loop, or everything that runs on it."""
    with written_down(how):
        await _WAYS_OUT[how]()
    return "still there"


async def fail(kind: int) -> None:
    """Fails in one of many ways, on the first try and on every other."""
    with written_down():
        await asyncio.sleep(0.001)
        raise type(f"Problem{kind}", (Exception,), {})(f"job {current_job().id} cannot be done")


async def deaf(seconds: float) -> str:
    """Goes on although it is asked to stop."""
    with written_down():
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                await asyncio.sleep(end - time.monotonic())
            except asyncio.CancelledError:
                continue
    return "at last"


class Mute(Exception):
    """Its message exits."""

    def __str__(self) -> str:
        raise SystemExit(3)


async def _exit_in_a_subtask() -> None:
    async def inner() -> None:
        sys.exit(3)

    await asyncio.gather(inner())


async def _exit_in_a_callback() -> None:
    asyncio.get_running_loop().call_soon(sys.exit, 3)
    await asyncio.sleep(0.01)


async def _interrupt_in_a_task_group() -> None:
    async def inner() -> None:
        raise KeyboardInterrupt

    async with asyncio.TaskGroup() as group:
        group.create_task(inner())


async def _stop_the_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.01)


async def _fail_mutely() -> None:
    raise Mute


async def _cancel_oneself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(60)


async def _cancel_everything() -> None:
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(60)


_WAYS_OUT: Final = {
    "subtask": _exit_in_a_subtask,
    "callback": _exit_in_a_callback,
    "group": _interrupt_in_a_task_group,
    "stop": _stop_the_loop,
    "mute": _fail_mutely,
    "cancel": _cancel_oneself,
}
WAYS_OUT: Final = tuple(_WAYS_OUT)


def _eat_memory() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))
    try:
        bytearray(1 << 30)
    except MemoryError:
        os.abort()  # as a library written in C does when it gets no memory


_DEATHS: Final[dict[str, Callable[[], Any]]] = {
    "exit": lambda: os._exit(3),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segv": lambda: ctypes.string_at(0),
    "memory": _eat_memory,
    # These two unwind: what they end is notified, and could do the wrong thing about it.
    "unwind": _exit_in_a_subtask,
    "cancel": _cancel_everything,
}
DEATHS: Final = tuple(_DEATHS)

OPTIONS: Final[dict[Any, Any]] = {}
# A version from before limits, whose worker a test starts with this module, runs these jobs like any other.
if hasattr(fennelq, "Limit"):
    OPTIONS[for_account] = {"concurrency": fennelq.Limit(1, key="account")}
    OPTIONS[paced] = {"rate_limit": fennelq.Rate("10/s")}
FUNCTIONS: Final = (
    work,
    long_at_first,
    flaky,
    for_account,
    paced,
    due,
    block,
    spin,
    hog_at_first,
    poison,
    in_thread,
    unprintable,
    leave,
    deaf,
    fail,
)


def app_of(**settings: Any) -> App:
    """The app, for a client with settings of its own."""
    app = App(NAME, **settings)
    at_once = RetryPolicy.fixed(3, delay=0)
    for function in FUNCTIONS:
        app.task(retry=at_once, **OPTIONS.get(function, {}))(function)
    return app


def task_of(app: App, function: Any) -> AnyTask:
    """The task that a function of this module is in an app."""
    return app.tasks[f"{__name__}:{function.__name__}"]


app = app_of()
