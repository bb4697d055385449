"""An app whose tasks run in processes of their own. Each shows one thing that such a process does or suffers."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import structlog
from pydantic import AfterValidator

from fennelq import App, Depends, JobContext, Reject, Retry, RetryPolicy, Shared, Snooze, current_job
from fennelq.worker.cells.preload import REDIS_URL

app = App("cramped", max_payload_bytes=16 << 20, stop_grace=0.2)
POLICY = RetryPolicy.fixed(2, delay=0).giving_up_on(KeyError)
memory: list[int] = []
colour: ContextVar[str] = ContextVar("colour", default="none")


@app.task(isolation="process")
def where() -> tuple[int, int]:
    """The process, and its group."""
    return os.getpid(), os.getpgid(0)


@app.task(isolation="process")
def descriptors() -> list[bool]:
    """Those of this process beside the standard streams, and whether a program would inherit them."""
    found: list[bool] = []
    for number in range(3, 256):
        with suppress(OSError):
            found.append(os.get_inheritable(number))
    return found


@app.task(isolation="process")
def facts() -> tuple[str, int, int, dict[str, str], str | None]:
    job = current_job()
    return job.id, job.fence, job.tries, dict(job.headers), job.cancelled


async def doubled(job: JobContext, call: Callable[[], Awaitable[Any]]) -> Any:
    try:
        return 2 * await call()
    except Exception as error:
        return [job.id, str(error)]


@app.task(isolation="process", performing=[doubled])
def count(items: list[int]) -> list[int | str]:
    if not items:
        raise ValueError("nothing")
    return [*items]


@app.task(isolation="process")
def report_progress() -> None:
    job = current_job()
    job.sync.progress(1, 3, "rows")
    asyncio.run(job.progress(2.5))
    job.sync.progress(3, 3)


let_go = threading.Event()
left_behind: list[threading.Thread] = []


@app.task(isolation="process")
def leave_thread_behind() -> None:
    """It reports progress when the job has ended."""
    job = current_job()

    def report() -> None:
        let_go.wait()
        job.sync.progress(9)

    left_behind.append(threading.Thread(target=report))
    left_behind[0].start()


@app.task(isolation="process")
def let_thread_go() -> int:
    let_go.set()
    left_behind[0].join()
    return os.getpid()


carrying = App("carrying", redis_url="redis://127.0.0.1:1/5", namespace="elsewhere")
request_id: ContextVar[str] = ContextVar("request_id", default="none")
carrying.carry(request_id)


@carrying.task(isolation="process")
def look_around() -> list[str | None]:
    """Which request it belongs to, and which Redis it would send jobs to."""
    return [request_id.get(), carrying.settings.redis_url, carrying.namespace, os.environ.get(REDIS_URL)]


@app.task(isolation="process")
def remember(n: int) -> tuple[list[int], str]:
    """What earlier jobs have left in this process, and in its context."""
    memory.append(n)
    before = colour.get()
    colour.set("red")
    return memory, before


made: list[str] = []
last_words: list[str] = []
connections: list[socket.socket] = []


def connect() -> Generator[str]:
    made.append("connected")
    yield "pool"
    for path in last_words:
        Path(path).touch()


def linger() -> Generator[int]:
    yield os.getpid()
    time.sleep(60)


@app.task(isolation="process")
def lingering(pid: int = Shared(linger)) -> int:
    return pid


def begin(pool: str = Shared(connect)) -> Generator[str]:
    made.append("begun")
    try:
        yield f"session of {pool}"
    except ValueError:
        made.append("rolled back")
    else:
        made.append("committed")


@app.task(isolation="process", retries=0)
def store(
    fail: bool, mark: str, session: str = Depends(begin), job: JobContext = Depends(current_job)
) -> list[str]:
    last_words[:] = [mark]
    if fail:
        raise ValueError
    return [session, job.id, *made]


def hang() -> Generator[None]:
    yield
    while True:
        pass


@app.task(isolation="process", retries=0)
def hang_at_the_end(_: None = Depends(hang)) -> None: ...


@app.task(isolation="process")
def echo(text: str) -> str:
    return text


@app.task(isolation="process")
def silent(text: str) -> None: ...


@app.task(isolation="process")
def lie() -> int:
    return "text"  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


def exits(_: Any) -> Any:
    sys.exit("in a validator")


@app.task(isolation="process")
def choosy(n: Annotated[int, AfterValidator(exits)]) -> None: ...


class Unspeakable(Exception):
    """It cannot be pickled, and its class cannot be found by an import."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        super().__init__("not to be pickled")


@app.task(isolation="process", retry=POLICY)
def fail(kind: str) -> None:
    match kind:
        case "unspeakable":
            raise Unspeakable(lambda: None)
        case "retry":
            raise Retry(7, "not yet")
        case "snooze":
            raise Snooze(9)
        case "reject":
            raise Reject("never")
        case "missing":
            raise KeyError("gone")
        case "exit":
            sys.exit("enough")
        case _:
            raise ValueError(kind)


@app.task(isolation="process", retry=POLICY)
def die(how: str) -> None:
    match how:
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(7)
        case "kill":  # as the kernel does when memory runs out
            os.kill(os.getpid(), signal.SIGKILL)
        case "close":
            os.closerange(3, 1024)
        case _:
            os.abort()


@app.task(isolation="process", retries=0)
def reconnect(path: str) -> None:
    """Closes everything, and opens connections that get the numbers of what was open."""
    os.closerange(3, 1024)
    connections.extend(socket.socket(socket.AF_UNIX) for _ in range(8))
    for connection in connections:
        connection.connect(path)


@app.task(isolation="process", retries=0)
def scribble() -> None:
    """Writes into whatever is open."""
    for number in range(3, 64):
        with suppress(OSError):
            os.write(number, b"this is not a frame, and longer than the prefix of one")


@app.task(isolation="process", timeout=60, retries=0)
def spin(mark: str) -> None:
    """Burns CPU, with a program of its own beside it, and ignores every signal that can be ignored."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    beside = subprocess.Popen(["sleep", "60"])
    Path(mark).write_text(f"{os.getpid()} {beside.pid}", encoding="ascii")
    while True:
        pass


@app.task(isolation="process")
def hold(mark: str, gate: str) -> int:
    """Waits at a gate; answers in which process."""
    Path(mark).write_text(f"{os.getpid()}", encoding="ascii")
    while not Path(gate).exists():
        time.sleep(0.005)
    return os.getpid()


@app.task(isolation="process")
def fork(mark: str) -> int:
    """Both processes return; answers how the child ended."""
    if child := os.fork():
        return os.waitpid(child, 0)[1]
    logging.getLogger("child").warning("on its own")
    Path(mark).touch()
    return 2


@app.task(isolation="process")
def handle_signals() -> str:
    """Leaves a handler and a timer behind."""

    def raise_it(_: int, __: FrameType | None) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, raise_it)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    return "ok"


@app.task(isolation="process")
def log_under_alarms(lines: int) -> int:
    """Logs from a handler of signals that come while a line is sent, and that break off what they interrupt."""
    logger = logging.getLogger("library")
    alarms, armed = 0, False

    def alarm(_: int, __: FrameType | None) -> None:
        nonlocal alarms, armed
        breaks_off, armed = armed, False
        alarms += 1
        logger.warning("alarm")
        if breaks_off:
            raise TimeoutError

    signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    for _ in range(lines):
        with suppress(TimeoutError):
            armed = True
            logger.warning("line %s", "x" * 1_000_000)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return alarms


@app.task(isolation="process", retry=RetryPolicy.fixed(3, delay=0))
def die_once() -> int:
    """The first try ends by a segmentation fault."""
    if current_job().tries == 1:
        ctypes.string_at(0)
    return current_job().tries


@app.task(isolation="process")
def talk() -> None:
    """Says something in every way."""
    print("printed", flush=True)
    logging.getLogger("library").warning("about %s", "this", extra={"colour": "red", "odd": {1: object}})
    logging.getLogger("library").debug("not wanted")
    try:
        raise ValueError("half a pair: \ud800")
    except ValueError:
        logging.getLogger("library").exception("failed")
    structlog.get_logger("mine").info("structured", n=7)


@app.task(isolation="process")
def wait(seconds: float) -> str:
    time.sleep(seconds)
    return "undisturbed"


@app.task(isolation="process")
def multiply(text: str, times: int) -> str:
    return text * times


@app.task(isolation="process")
def add_up(mark: str) -> int:
    """Computes for hours in C: no signal handler and no other thread of its process gets a turn."""
    Path(mark).write_text(f"{os.getpid()}", encoding="ascii")
    return sum(range(10**15))
