"""What metrics cost an executor: ``python -m benchmarks.metered URL --pairs 12 --jobs 10000`` prints JSON.

One process drains the same jobs in turns with and without metrics, each time with a new executor. So both have the same
interpreter, the same memory and the same minute, and the CPU time per job of a pair can be compared to a percent. Two
processes differ by more than that, even without metrics.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from typing import Final

from benchmarks.loops import LoopName, run
from fennelq import App
from fennelq.worker.executor import Executor
from fennelq.worker.processes.config import ExecutorConfig

_LIMIT: Final = 60.0
"""Seconds for one drain."""


class Drains:
    """An app, with or without metrics, and executors of it that drain its queue."""

    def __init__(self, url: str, *, metered: bool) -> None:
        self._app = App("metered" if metered else "plain", redis_url=url)
        # As a supervisor with --health-port starts its executors; what they send goes nowhere.
        totals = os.open(os.devnull, os.O_WRONLY) if metered else -1
        self._config = ExecutorConfig(metrics="task" if metered else "", totals=totals)
        self._left, self._gate, self._done = 0, asyncio.Event(), asyncio.Event()

        @self._app.task(name="bench:noop")
        async def noop(number: int) -> int:
            if not self._gate.is_set():
                await self._gate.wait()
            self._left -= 1
            if not self._left:
                self._done.set()
            return number

        self._noop = noop

    async def drain(self, jobs: int) -> tuple[float, float]:
        """µs of CPU time per job of this process, and jobs per second."""
        self._left, self._gate, self._done = jobs, asyncio.Event(), asyncio.Event()
        async with self._app:
            await self._app.enqueue([self._noop.job(number) for number in range(jobs)])
            executor = Executor(self._app, self._config)
            running = asyncio.create_task(executor.run())
            await asyncio.sleep(0.2)  # the first jobs wait at the gate, and the start is over
            cpu, began = time.process_time(), time.perf_counter()
            self._gate.set()
            async with asyncio.timeout(_LIMIT):
                await self._done.wait()
            used, seconds = time.process_time() - cpu, time.perf_counter() - began
            executor.stop(now=False)
            await running
        return used / jobs * 1e6, jobs / seconds


async def measure(url: str, pairs: int, jobs: int) -> dict[str, list[float]]:
    """CPU time per job and jobs per second, of each pair."""
    drains = {"with": Drains(url, metered=True), "without": Drains(url, metered=False)}
    found: dict[str, list[float]] = {f"{kind} {name}": [] for kind in ("cpu", "rate") for name in drains}
    for pair in range(-1, pairs):
        for name in ("with", "without") if pair % 2 else ("without", "with"):
            cpu, rate = await drains[name].drain(jobs)
            if pair >= 0:  # the first pair warms up
                found[f"cpu {name}"].append(cpu)
                found[f"rate {name}"].append(rate)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="What metrics cost an executor.")
    parser.add_argument("url")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop")
    wanted = parser.parse_args()
    loop: LoopName = "uvloop" if wanted.loop == "uvloop" else "asyncio"
    print(json.dumps(run(measure(wanted.url, wanted.pairs, wanted.jobs), loop)))


if __name__ == "__main__":
    main()
