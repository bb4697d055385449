"""`make demo`: a private server, a worker and a shop's worth of jobs, looked at from the outside.

It lives in a temporary directory, so the second run is like the first and nothing is left behind. Exits 0
when all went as promised, 1 when something did not, 130 when it was interrupted.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from examples.demo_board import Board
from fennelq import __version__, embedded
from fennelq.embedded.guardian import GUARDIAN_LOCK

if TYPE_CHECKING:
    from examples.demo_scenes import Line

REPOSITORY = Path(__file__).parents[1]
COMMAND = ("worker", "-A", "examples.demo_tasks:app", "-p", "2")
INTERRUPTED = 130


def main() -> int:
    """Run the demo; answers the exit code."""
    forget_settings_of_the_shell()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    board = Board()
    try:
        with temporary_directory() as folder, private_server(folder) as url:
            board.say("server", f"fennelq {__version__} has started a private one in {folder}")
            # Read when the tasks are imported, hence before.
            os.environ["FENNELQ_REDIS_URL"] = url
            return asyncio.run(perform(board, folder))
    except (KeyboardInterrupt, asyncio.CancelledError):
        board.close()
        print("Interrupted; nothing is left behind.")
        return INTERRUPTED


def forget_settings_of_the_shell() -> None:
    """The demo is the same for everybody."""
    for name in [name for name in os.environ if name.startswith("FENNELQ_")]:
        del os.environ[name]


@contextmanager
def temporary_directory() -> Generator[Path]:
    with tempfile.TemporaryDirectory(prefix="fennelq-demo-") as name:
        yield Path(name)


@contextmanager
def private_server(folder: Path) -> Generator[str]:
    """The URL of an embedded server. It stops when its last user is gone: wait, the directory goes next."""
    server = embedded.start(folder)
    try:
        yield server.url
    finally:
        server.close()
        deadline = time.monotonic() + 10
        while guardian_of(server) and time.monotonic() < deadline:
            time.sleep(0.01)


def guardian_of(server: embedded.EmbeddedServer) -> str:
    """Who looks after the server and ends when that has ended: a process id, or nothing."""
    return (server.directory / GUARDIAN_LOCK).read_text()


async def perform(board: Board, folder: Path) -> int:
    """Play every scene with one worker; answers the exit code."""
    from examples import demo_scenes, demo_tasks

    end_like_an_interrupt_on_sigterm()
    async with demo_tasks.app, worker(board, folder) as gone:
        playing = asyncio.create_task(demo_scenes.play(board, folder))
        try:
            await asyncio.wait([playing, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            playing.cancel()
        board.close()
        if not playing.done():
            return failed(["the worker has ended"], folder)
        return account(board, playing.result(), folder)


def end_like_an_interrupt_on_sigterm() -> None:
    me = asyncio.current_task()
    assert me is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)


@asynccontextmanager
async def worker(board: Board, folder: Path) -> AsyncGenerator[asyncio.Task[int]]:
    """A worker like one in a second terminal, stopped in the end; yields the task that ends when it does."""
    # It is told the directory, not the socket, and meets the server there, like all processes of a project.
    environment = {**os.environ, "FENNELQ_REDIS_URL": f"embedded://{folder}", "FENNELQ_LOG_FORMAT": "console"}
    with log_of(folder).open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fennelq", *COMMAND),
            cwd=REPOSITORY,
            env=environment,
            stdout=log,
            stderr=log,
        )
    board.say("worker", f"fennelq {' '.join(COMMAND)}")
    gone = asyncio.create_task(process.wait())
    try:
        yield gone
    finally:
        if not gone.done():
            process.terminate()
        await gone


def account(board: Board, lines: Sequence[Line | BaseException], folder: Path) -> int:
    """Say what happened; answers the exit code."""
    told = [line for line in lines if not isinstance(line, BaseException)]
    print("\nWhat happened")
    for line in told:
        print(f"  {line.jobs:>3}  {line.what:<12}  {line.told}")
    print(f"  {sum(line.jobs for line in told):>3}  jobs in {board.seconds:.1f} s")
    if problems := [f"{type(line).__name__}: {line}" for line in lines if isinstance(line, BaseException)]:
        return failed(problems, folder)
    print("\nAll as promised. The worker and the server stop now, and nothing is left behind.")
    return 0


def failed(problems: Sequence[str], folder: Path) -> int:
    print("\nThis should not have happened:")
    for problem in problems:
        print(f"  {problem}")
    print("The worker's last lines:")
    print(log_of(folder).read_text(errors="replace")[-3000:])
    return 1


def log_of(folder: Path) -> Path:
    return folder / "worker.log"


if __name__ == "__main__":
    sys.exit(main())
