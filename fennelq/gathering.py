"""Waits for several jobs at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, Literal, Never, TypeVar, overload

from fennelq import clock
from fennelq.errors import ResultTimeout
from fennelq.result import AsyncResult
from fennelq.usage import gathered, is_over, results_given

R = TypeVar("R")
R1 = TypeVar("R1")
R2 = TypeVar("R2")
R3 = TypeVar("R3")
R4 = TypeVar("R4")
R5 = TypeVar("R5")
R6 = TypeVar("R6")


@overload
async def gather(
    r1: AsyncResult[R1],
    r2: AsyncResult[R2],
    /,
    *,
    timeout: float | None = None,
    return_exceptions: Literal[False] = False,
) -> tuple[R1, R2]: ...
@overload
async def gather(
    r1: AsyncResult[R1],
    r2: AsyncResult[R2],
    r3: AsyncResult[R3],
    /,
    *,
    timeout: float | None = None,
    return_exceptions: Literal[False] = False,
) -> tuple[R1, R2, R3]: ...
@overload
async def gather(
    r1: AsyncResult[R1],
    r2: AsyncResult[R2],
    r3: AsyncResult[R3],
    r4: AsyncResult[R4],
    /,
    *,
    timeout: float | None = None,
    return_exceptions: Literal[False] = False,
) -> tuple[R1, R2, R3, R4]: ...
@overload
async def gather(
    r1: AsyncResult[R1],
    r2: AsyncResult[R2],
    r3: AsyncResult[R3],
    r4: AsyncResult[R4],
    r5: AsyncResult[R5],
    /,
    *,
    timeout: float | None = None,
    return_exceptions: Literal[False] = False,
) -> tuple[R1, R2, R3, R4, R5]: ...
@overload
async def gather(
    r1: AsyncResult[R1],
    r2: AsyncResult[R2],
    r3: AsyncResult[R3],
    r4: AsyncResult[R4],
    r5: AsyncResult[R5],
    r6: AsyncResult[R6],
    /,
    *,
    timeout: float | None = None,
    return_exceptions: Literal[False] = False,
) -> tuple[R1, R2, R3, R4, R5, R6]: ...
@overload
async def gather(
    *results: AsyncResult[R], timeout: float | None = None, return_exceptions: Literal[False] = False
) -> list[R]: ...
@overload
async def gather(
    r1: AsyncResult[R1],
    r2: AsyncResult[R2],
    /,
    *,
    timeout: float | None = None,
    return_exceptions: Literal[True],
) -> tuple[R1 | BaseException, R2 | BaseException]: ...
@overload
async def gather(
    r1: AsyncResult[R1],
    r2: AsyncResult[R2],
    r3: AsyncResult[R3],
    /,
    *,
    timeout: float | None = None,
    return_exceptions: Literal[True],
) -> tuple[R1 | BaseException, R2 | BaseException, R3 | BaseException]: ...
@overload
async def gather(
    r1: AsyncResult[R1],
    r2: AsyncResult[R2],
    r3: AsyncResult[R3],
    r4: AsyncResult[R4],
    /,
    *,
    timeout: float | None = None,
    return_exceptions: Literal[True],
) -> tuple[R1 | BaseException, R2 | BaseException, R3 | BaseException, R4 | BaseException]: ...
@overload
async def gather(
    r1: AsyncResult[R1],
    r2: AsyncResult[R2],
    r3: AsyncResult[R3],
    r4: AsyncResult[R4],
    r5: AsyncResult[R5],
    /,
    *,
    timeout: float | None = None,
    return_exceptions: Literal[True],
) -> tuple[
    R1 | BaseException, R2 | BaseException, R3 | BaseException, R4 | BaseException, R5 | BaseException
]: ...
@overload
async def gather(
    r1: AsyncResult[R1],
    r2: AsyncResult[R2],
    r3: AsyncResult[R3],
    r4: AsyncResult[R4],
    r5: AsyncResult[R5],
    r6: AsyncResult[R6],
    /,
    *,
    timeout: float | None = None,
    return_exceptions: Literal[True],
) -> tuple[
    R1 | BaseException,
    R2 | BaseException,
    R3 | BaseException,
    R4 | BaseException,
    R5 | BaseException,
    R6 | BaseException,
]: ...
@overload
async def gather(
    *results: AsyncResult[R], timeout: float | None = None, return_exceptions: Literal[True]
) -> list[R | BaseException]: ...
async def gather(
    *results: AsyncResult[Any], timeout: float | None = None, return_exceptions: bool = False
) -> Any:
    """The values of all results, in order. Raises the first exception; with `return_exceptions`, returns exceptions in
    the places of their values.

    Type checkers see a tuple for two to six results, so that each value keeps its own type:
    `name, total = await gather(first, second)`. At run time it is always a list, as with `asyncio.gather`.
    """
    gathered("gather", results)
    gets = (result.get(timeout) for result in results)
    return await asyncio.gather(*gets, return_exceptions=return_exceptions)


async def wait(
    results: Iterable[AsyncResult[R]],
    *more: Never,
    timeout: float | None = None,
    return_when: Literal["first", "all"] = "all",
) -> tuple[set[AsyncResult[R]], set[AsyncResult[R]]]:
    """Two sets: the results whose jobs have ended, successfully or not, and the others, after at most `timeout`."""
    results = results_given("wait", results, more)
    if timeout is not None and is_over(timeout):
        return await _ended_by_now(results)
    tasks = {asyncio.ensure_future(result.get()): result for result in results}
    if not tasks:
        return set(), set()
    when = asyncio.FIRST_COMPLETED if return_when == "first" else asyncio.ALL_COMPLETED
    try:
        done, pending = await asyncio.wait(tasks, timeout=timeout, return_when=when)
        for task in done:
            task.exception()
        return {tasks[task] for task in done}, {tasks[task] for task in pending}
    finally:
        await _abandon(tasks)


async def as_completed(
    results: Iterable[AsyncResult[R]], *more: Never, timeout: float | None = None
) -> AsyncIterator[AsyncResult[R]]:
    """Yields each result when its job ends, successfully or not; raises TimeoutError `timeout` seconds after the
    call."""
    results = results_given("as_completed", results, more)
    if timeout is not None and is_over(timeout):
        there, going_on = await _ended_by_now(results)
        for result in there:
            yield result
        if going_on:
            raise not_ended(len(going_on), len(going_on) + len(there), timeout)
        return
    tasks = {asyncio.ensure_future(result.get()): result for result in results}
    pending = set(tasks)
    deadline = None if timeout is None else clock.monotonic() + timeout
    try:
        while pending:
            left = None if deadline is None else max(0.0, deadline - clock.monotonic())
            done, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise not_ended(len(pending), len(tasks), timeout or 0.0)
            for task in done:
                task.exception()
                yield tasks[task]
    finally:
        await _abandon(tasks)


async def _ended_by_now(
    results: Iterable[AsyncResult[R]],
) -> tuple[set[AsyncResult[R]], set[AsyncResult[R]]]:
    """Check each once; returns the results whose jobs have ended, and the others."""
    every = list(results)
    outcomes = await asyncio.gather(*(result.get(timeout=0) for result in every), return_exceptions=True)
    going_on = {result for result, end in zip(every, outcomes, strict=True) if isinstance(end, ResultTimeout)}
    return set(every) - going_on, going_on


def not_ended(number: int, of: int, timeout: float) -> TimeoutError:
    """The error of `as_completed` when its timeout is over."""
    return TimeoutError(f"{number} of {of} jobs have not ended after {timeout:g} s")


async def _abandon(tasks: Iterable[asyncio.Task[Any] | asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
