"""Many executors in a few processes: ``python -m benchmarks.fleet --executors 1024 --processes 4 --queues a,b``.

Each executor is a whole one, with its slots, its three connections, its threads and its duties. Only the processes are
shared, because a thousand interpreters would need a larger machine. `--unwatched` leaves out the watchdogs: they never
talk to Redis, but wake their process several times a second, and a thousand of them would keep two cores busy.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
from types import FrameType

from benchmarks.jobs import app
from benchmarks.loops import LoopName, run
from fennelq.worker.executor import Executor
from fennelq.worker.processes.config import ExecutorConfig
from fennelq.worker.threads.watchdog import Watchdog

_BETWEEN_STARTS = 0.1
"""Seconds between two starts in a process. A thousand executors that start at once would keep two cores busy for so
long that the server does not answer in time."""


async def serve(executors: int, slots: int, queues: str) -> None:
    """Run this many executors until SIGTERM."""
    config = ExecutorConfig(concurrency=slots, queues=queues)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    fleet = [Executor(app, config) for _ in range(executors)]
    async with app:
        running = [asyncio.create_task(_start(executor, place)) for place, executor in enumerate(fleet)]
        ending = asyncio.create_task(stopped.wait())
        # A fleet of which an executor has failed is not the one to measure: the process ends, and the row fails.
        await asyncio.wait([ending, *running], return_when=asyncio.FIRST_COMPLETED)
        for executor in fleet:
            executor.stop(now=True)
        await asyncio.gather(*running)


async def _start(executor: Executor, place: int) -> None:
    await asyncio.sleep(place * _BETWEEN_STARTS)
    await executor.run()


def main() -> None:
    parser = argparse.ArgumentParser(description="Many executors in a few processes.")
    parser.add_argument("--executors", type=int, required=True)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--slots", type=int, default=1, help="of each executor (1)")
    parser.add_argument("--queues", required=True)
    parser.add_argument("--unwatched", action="store_true", help="without the watchdogs of the executors")
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop")
    wanted = parser.parse_args()
    _open_many_files()
    if wanted.unwatched:
        setattr(Watchdog, "start", _do_nothing)  # noqa: B010
    children = [
        _child(_share(wanted.executors, wanted.processes, place), wanted) for place in range(wanted.processes)
    ]
    _wait_for(children)


def _do_nothing(_: Watchdog) -> None: ...


def _share(executors: int, processes: int, place: int) -> int:
    """The executors of one of the processes."""
    return (executors + place) // processes


def _child(executors: int, wanted: argparse.Namespace) -> int:
    if child := os.fork():
        return child
    loop: LoopName = "uvloop" if wanted.loop == "uvloop" else "asyncio"
    run(serve(executors, wanted.slots, wanted.queues), loop)
    os._exit(0)


def _wait_for(children: list[int]) -> None:
    """Wait for the first child that ends. SIGTERM goes to all of them."""

    def stop(signum: int, frame: FrameType | None) -> None:
        for child in children:
            os.kill(child, signal.SIGTERM)
        for child in children:
            os.waitpid(child, 0)
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    os.wait()
    os._exit(1)


def _open_many_files() -> None:
    """Each executor has three connections."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    main()
