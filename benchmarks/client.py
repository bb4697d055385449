"""The sending and waiting side: a process of its own, the same for every contestant.

``python -m benchmarks.client <adapter module> <action> <arguments as JSON>`` prints one JSON object. An
adapter module offers ``open_client(url)``, whose client sends one job, sends many the library's fastest way,
and waits for a result.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from benchmarks.loops import LoopName, run
from benchmarks.tally import Tally, open_gate_of

_BULK = 10_000
"""Jobs of one bulk call that is measured."""
_FILL_CHUNK = 1_000
"""Jobs of one bulk call that is not: small enough for 100 KB each."""
_WARM_TURNS = 10
_POLL_SECONDS = 0.0005

Answer = dict[str, Any]


class Client(Protocol):
    """What an adapter gives; handles are opaque."""

    def send(self, task: str, argument: Any) -> Awaitable[Any]:
        """Send one job, return its handle."""
        ...

    async def send_many(self, task: str, arguments: Sequence[Any], lane: str) -> Sequence[Any]:
        """Send all of them in the fastest way the library has."""
        ...

    def wait(self, handle: Any) -> Awaitable[Any]:
        """Wait until the job has ended and return its result."""
        ...

    async def close(self) -> None: ...


async def fill(
    client: Client, task: str, count: int, lanes: Sequence[str], argument: float | None, size: int
) -> Answer:
    """Queue ``count`` jobs, spread evenly over the lanes."""
    same = "x" * size if size else argument
    for number, (first, last) in enumerate(_chunks(count, _FILL_CHUNK)):
        arguments = range(first, last) if same is None else [same] * (last - first)
        await client.send_many(task, arguments, lanes[number % len(lanes)])
    return {}


async def send_alone(client: Client, count: int) -> Answer:
    """One job after the other, each awaited before the next is sent."""

    async def one_by_one() -> None:
        for number in range(count):
            await client.send("noop", number)

    await client.send("noop", 0)
    return await _rate(one_by_one(), count)


async def send_concurrently(client: Client, count: int, width: int) -> Answer:
    """``width`` calls at a time in one ``gather``."""

    async def in_groups() -> None:
        for first in range(0, count, width):
            await asyncio.gather(*[client.send("noop", number) for number in range(first, first + width)])

    await asyncio.gather(*[client.send("noop", number) for number in range(width)])
    return await _rate(in_groups(), count)


async def send_in_bulk(client: Client, count: int) -> Answer:
    """Chunks of ten thousand jobs in single calls."""

    async def in_chunks() -> None:
        for first, last in _chunks(count, _BULK):
            await client.send_many("noop", range(first, last), "normal")

    await client.send_many("noop", range(100), "normal")
    return await _rate(in_chunks(), count)


async def send_for(client: Client, seconds: float, width: int) -> Answer:
    """So many callers at a time, each one job after the other for so long: milliseconds per call."""
    for number in range(_WARM_TURNS):
        await client.send("noop", number)
    deadline = time.monotonic() + seconds
    taken: list[float] = []

    async def one_by_one() -> None:
        while time.monotonic() < deadline:
            began = time.perf_counter()
            await client.send("noop", len(taken))
            taken.append((time.perf_counter() - began) * 1e3)

    await asyncio.gather(*[one_by_one() for _ in range(width)])
    return {"ms": taken}


async def round_trips(client: Client, samples: int, budget: float) -> Answer:
    """Send one job, wait for its result, again: milliseconds per turn, at most ``budget`` seconds of it."""
    for number in range(_WARM_TURNS):
        await client.wait(await client.send("noop", number))
    deadline = time.monotonic() + budget
    taken: list[float] = []
    while len(taken) < samples and time.monotonic() < deadline:
        began = time.perf_counter()
        await client.wait(await client.send("noop", len(taken)))
        taken.append((time.perf_counter() - began) * 1e3)
    return {"ms": taken}


async def concurrent_waits(client: Client, waits: int, seconds: float, tally: str) -> Answer:
    """Wait for many results at once; the jobs start when all waiters wait. Lags count from a job's end."""

    async def lag(handle: Any) -> float:
        ended: int = await client.wait(handle)
        return (time.monotonic_ns() - ended) / 1e6

    handles = await client.send_many("stamp", [seconds] * waits, "normal")
    cpu_before = time.process_time()
    waiters = asyncio.gather(*[lag(handle) for handle in handles])
    await asyncio.sleep(0.5)
    open_gate_of(Path(tally))
    lags = await waiters
    return {"lag_ms": lags, "cpu_us": (time.process_time() - cpu_before) / waits * 1e6}


async def lone_jobs(client: Client, count: int, tally: str, pause: float) -> Answer:
    """Send one job, see in the tally that its body has run, pause, again.

    Returns the milliseconds from each call until the body had run. The client does not wait for results, so that the
    server only queues the job, wakes an executor and writes the end.
    """
    watched = Tally(Path(tally), fresh=False)
    lags: list[float] = []
    for number in range(count):
        done, sent_ns = watched.done, time.monotonic_ns()
        await client.send("noop", number)
        while watched.done == done:  # noqa: ASYNC110 - another process counts, no event can
            await asyncio.sleep(_POLL_SECONDS)
        lags.append((watched.last_ns - sent_ns) / 1e6)
        await asyncio.sleep(pause)
    return {"ms": lags}


ACTIONS: dict[str, Callable[..., Awaitable[Answer]]] = {
    action.__name__: action
    for action in (
        fill,
        send_alone,
        send_concurrently,
        send_in_bulk,
        send_for,
        round_trips,
        concurrent_waits,
        lone_jobs,
    )
}


async def _rate(work: Awaitable[None], count: int) -> Answer:
    began, cpu_before = time.perf_counter(), time.process_time()
    await work
    seconds = time.perf_counter() - began
    return {"jobs_per_s": count / seconds, "client_us": (time.process_time() - cpu_before) / count * 1e6}


def _chunks(count: int, size: int) -> Iterator[tuple[int, int]]:
    for first in range(0, count, size):
        yield first, min(first + size, count)


async def perform(adapter: str, url: str, action: str, arguments: dict[str, Any]) -> Answer:
    client: Client = await importlib.import_module(adapter).open_client(url)
    try:
        return await ACTIONS[action](client, **arguments)
    finally:
        await client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="One action of a benchmark client.")
    parser.add_argument("adapter")
    parser.add_argument("action", choices=sorted(ACTIONS))
    parser.add_argument("arguments", type=json.loads)
    parser.add_argument("--url", required=True)
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], required=True)
    wanted = parser.parse_args()
    loop: LoopName = wanted.loop
    print(json.dumps(run(perform(wanted.adapter, wanted.url, wanted.action, wanted.arguments), loop)))


if __name__ == "__main__":
    main()
