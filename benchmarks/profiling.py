"""``python -m benchmarks.profiling``: how much slower an executor is while it is profiled.

The same work is done again and again on an event loop, in turns with the sampler and without it, and its CPU time is
compared: that of the whole process, with the threads of the sampler. Exits 1 when the bar is missed.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from statistics import median
from typing import Final

from fennelq import App
from fennelq.model.job import Delivery
from fennelq.worker.processes.config import ExecutorConfig
from fennelq.worker.running.held import Held
from fennelq.worker.state import State
from fennelq.worker.threads.profiler import Timing

_ROUNDS: Final = 25
_JOBS: Final = 32
_TURNS: Final = 60
"""Of each job, in a round."""
_BAR: Final = 1.03


def _work(depth: int) -> int:
    """Some calls deep, as jobs are."""
    if depth:
        return _work(depth - 1)
    number = 0
    for step in range(2_000):
        number = (number * 31 + step) % 1_000_003
    return number


async def _job() -> None:
    for _ in range(_TURNS):
        _work(20)
        await asyncio.sleep(0)


async def _round(state: State, *, profiled: bool) -> float:
    """The CPU seconds of the work."""
    watch = Timing(state, asyncio.get_running_loop(), threading.get_ident())
    began = time.process_time()
    if profiled:
        watch.start()
    for number in range(_JOBS):
        held = Held(Delivery("mail", "2", f"{number}-0", str(number), "shop:job", b"", b"", 0, 1, 1, 0))
        held.task = asyncio.create_task(_job())
        state.held.by_token[held.delivery.token] = held
    await asyncio.gather(*[held.task for held in state.held.by_token.values() if held.task is not None])
    if profiled:
        watch.end()
    state.held.by_token.clear()
    return time.process_time() - began


async def _ratios(state: State) -> list[float]:
    found: list[float] = []
    for turn in range(_ROUNDS):
        first = await _round(state, profiled=turn % 2 == 0)
        second = await _round(state, profiled=turn % 2 == 1)
        found.append(first / second if turn % 2 == 0 else second / first)
    return found


def main() -> int:
    state = State(App("shop", redis_url="redis://127.0.0.1:1"), ExecutorConfig())
    ratios = sorted(asyncio.run(_ratios(state)))
    middle = median(ratios)
    quarter = len(ratios) // 4
    print(
        f"CPU time, profiled to not profiled: {middle:.3f} (half of the rounds: {ratios[quarter]:.3f} to "
        f"{ratios[-quarter - 1]:.3f}); bar {_BAR:g}"
    )
    return int(middle > _BAR)


if __name__ == "__main__":
    sys.exit(main())
