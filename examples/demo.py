"""`make demo`: starts a private server and a worker, and sends them the jobs of a small shop.

All data is in a temporary directory, which is removed at the end. The exit code is 0 if every check succeeded, 1 if
one failed, and 130 if the demo was interrupted.
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
    """Run the demo; returns the exit code."""
    forget_settings_of_the_shell()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    board = Board()
    try:
        with temporary_directory() as folder, private_server(folder) as url:
            board.show("server", f"fennelq {__version__} has started a private one in {folder}")
            # Must be set before the tasks are imported, because the app reads it then.
            os.environ["FENNELQ_REDIS_URL"] = url
            return asyncio.run(perform(board, folder))
    except (KeyboardInterrupt, asyncio.CancelledError):
        board.close()
        print("Interrupted; all files are removed.")
        return INTERRUPTED


def forget_settings_of_the_shell() -> None:
    """Remove settings from the environment, so that the demo is the same in every shell."""
    for name in [name for name in os.environ if name.startswith("FENNELQ_")]:
        del os.environ[name]


@contextmanager
def temporary_directory() -> Generator[Path]:
    with tempfile.TemporaryDirectory(prefix="fennelq-demo-") as name:
        yield Path(name)


@contextmanager
def private_server(folder: Path) -> Generator[str]:
    """The URL of an embedded server. Waits at the end until the server has stopped: its directory is removed next."""
    server = embedded.start(folder)
    try:
        yield server.url
    finally:
        server.close()
        deadline = time.monotonic() + 10
        while guardian_of(server) and time.monotonic() < deadline:
            time.sleep(0.01)


def guardian_of(server: embedded.EmbeddedServer) -> str:
    """The process id of the guardian, or an empty text after it has ended. It ends after the server."""
    return (server.directory / GUARDIAN_LOCK).read_text()


async def perform(board: Board, folder: Path) -> int:
    """Play every scene with one worker; returns the exit code."""
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
    """Starts a worker, and stops it at the end; yields a task that ends when the worker ends."""
    # The worker gets the directory, not the socket, and finds the server there, like all processes of a project.
    environment = {**os.environ, "FENNELQ_REDIS_URL": f"embedded://{folder}", "FENNELQ_LOG_FORMAT": "console"}
    with log_of(folder).open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fennelq", *COMMAND),
            cwd=REPOSITORY,
            env=environment,
            stdout=log,
            stderr=log,
        )
    board.show("worker", f"fennelq {' '.join(COMMAND)}")
    gone = asyncio.create_task(process.wait())
    try:
        yield gone
    finally:
        if not gone.done():
            process.terminate()
        await gone


def account(board: Board, lines: Sequence[Line | BaseException], folder: Path) -> int:
    """Print the summary; returns the exit code."""
    played = [line for line in lines if not isinstance(line, BaseException)]
    print("\nWhat happened")
    for line in played:
        print(f"  {line.jobs:>3}  {line.what:<12}  {line.text}")
    print(f"  {sum(line.jobs for line in played):>3}  jobs in {board.seconds:.1f} s")
    if problems := [f"{type(line).__name__}: {line}" for line in lines if isinstance(line, BaseException)]:
        return failed(problems, folder)
    print("\nEvery check succeeded. The worker and the server stop now, and all files are removed.")
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
