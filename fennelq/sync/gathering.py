"""Waits for several jobs at once, without an event loop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal, Never, TypeVar, overload

from fennelq.errors import BrokerUnavailable, ResultTimeout
from fennelq.gathering import not_ended
from fennelq.loops import check_loop
from fennelq.sync.sync import BlockingResult, value_at
from fennelq.sync.waiting import End, ends_of
from fennelq.usage import gathered, results_given

if TYPE_CHECKING:
    from fennelq.app import App

R = TypeVar("R")
R1 = TypeVar("R1")
R2 = TypeVar("R2")
R3 = TypeVar("R3")
R4 = TypeVar("R4")
R5 = TypeVar("R5")
R6 = TypeVar("R6")


class BlockingGathering:
    """The part of `app.sync` that waits for several jobs."""

    def __init__(self, app: App) -> None:
        self._app = app

    @overload
    def gather(  # pyright: ignore[reportOverlappingOverload]
        self,
        r1: BlockingResult[R1],
        r2: BlockingResult[R2],
        /,
        *,
        timeout: float | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[R1, R2]: ...
    @overload
    def gather(
        self,
        r1: BlockingResult[R1],
        r2: BlockingResult[R2],
        r3: BlockingResult[R3],
        /,
        *,
        timeout: float | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[R1, R2, R3]: ...
    @overload
    def gather(
        self,
        r1: BlockingResult[R1],
        r2: BlockingResult[R2],
        r3: BlockingResult[R3],
        r4: BlockingResult[R4],
        /,
        *,
        timeout: float | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[R1, R2, R3, R4]: ...
    @overload
    def gather(
        self,
        r1: BlockingResult[R1],
        r2: BlockingResult[R2],
        r3: BlockingResult[R3],
        r4: BlockingResult[R4],
        r5: BlockingResult[R5],
        /,
        *,
        timeout: float | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[R1, R2, R3, R4, R5]: ...
    @overload
    def gather(
        self,
        r1: BlockingResult[R1],
        r2: BlockingResult[R2],
        r3: BlockingResult[R3],
        r4: BlockingResult[R4],
        r5: BlockingResult[R5],
        r6: BlockingResult[R6],
        /,
        *,
        timeout: float | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[R1, R2, R3, R4, R5, R6]: ...
    @overload
    def gather(
        self,
        *results: BlockingResult[R],
        timeout: float | None = None,
        return_exceptions: Literal[False] = False,
    ) -> list[R]: ...
    @overload
    def gather(  # pyright: ignore[reportOverlappingOverload]
        self,
        r1: BlockingResult[R1],
        r2: BlockingResult[R2],
        /,
        *,
        timeout: float | None = None,
        return_exceptions: Literal[True],
    ) -> tuple[R1 | BaseException, R2 | BaseException]: ...
    @overload
    def gather(
        self,
        r1: BlockingResult[R1],
        r2: BlockingResult[R2],
        r3: BlockingResult[R3],
        /,
        *,
        timeout: float | None = None,
        return_exceptions: Literal[True],
    ) -> tuple[R1 | BaseException, R2 | BaseException, R3 | BaseException]: ...
    @overload
    def gather(
        self,
        r1: BlockingResult[R1],
        r2: BlockingResult[R2],
        r3: BlockingResult[R3],
        r4: BlockingResult[R4],
        /,
        *,
        timeout: float | None = None,
        return_exceptions: Literal[True],
    ) -> tuple[R1 | BaseException, R2 | BaseException, R3 | BaseException, R4 | BaseException]: ...
    @overload
    def gather(
        self,
        r1: BlockingResult[R1],
        r2: BlockingResult[R2],
        r3: BlockingResult[R3],
        r4: BlockingResult[R4],
        r5: BlockingResult[R5],
        /,
        *,
        timeout: float | None = None,
        return_exceptions: Literal[True],
    ) -> tuple[
        R1 | BaseException, R2 | BaseException, R3 | BaseException, R4 | BaseException, R5 | BaseException
    ]: ...
    @overload
    def gather(
        self,
        r1: BlockingResult[R1],
        r2: BlockingResult[R2],
        r3: BlockingResult[R3],
        r4: BlockingResult[R4],
        r5: BlockingResult[R5],
        r6: BlockingResult[R6],
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
    def gather(
        self, *results: BlockingResult[R], timeout: float | None = None, return_exceptions: Literal[True]
    ) -> list[R | BaseException]: ...
    def gather(
        self, *results: BlockingResult[Any], timeout: float | None = None, return_exceptions: bool = False
    ) -> Any:
        """The values of all results, in order. Raises the first exception; with `return_exceptions`, returns exceptions
        in the places of their values.

        Type checkers see a tuple for two to six results, so that each value keeps its own type:
        `name, total = app.sync.gather(first, second)`. At run time it is always a list, as with `asyncio.gather`.
        """
        check_loop("app.sync.gather", "await gather(…)")
        gathered("app.sync.gather", results, "BlockingResult")
        waited_for: defaultdict[str, list[int]] = defaultdict(list)
        for place, result in enumerate(results):
            waited_for[result.id].append(place)
        values: list[Any] = [ResultTimeout(result.id, timeout or 0.0) for result in results]
        with closing(ends_of(self._app, list(waited_for), timeout)) as ends:
            for job_id, end in ends:
                for place in waited_for.pop(job_id):
                    try:
                        values[place] = value_at(self._app, results[place], end)
                    except Exception as error:
                        if not return_exceptions:
                            raise
                        values[place] = error
        if waited_for and not return_exceptions:
            raise values[min(place for places in waited_for.values() for place in places)]
        return values

    def wait(
        self,
        results: Iterable[BlockingResult[R]],
        *more: Never,
        timeout: float | None = None,
        return_when: Literal["first", "all"] = "all",
    ) -> tuple[set[BlockingResult[R]], set[BlockingResult[R]]]:
        """Two sets: the results whose jobs have ended, successfully or not, and the others, after at most `timeout`."""
        check_loop("app.sync.wait", "await wait(…)")
        going_on = {result.id: result for result in _given("wait", results, more)}
        done: set[BlockingResult[R]] = set()
        with closing(ends_of(self._app, list(going_on), timeout)) as ends:
            for job_id, end in ends:
                _raise_refusal(end)
                done.add(going_on.pop(job_id))
                if return_when == "first" and (timeout is None or timeout > 0):
                    break
        return done, set(going_on.values())

    def as_completed(
        self, results: Iterable[BlockingResult[R]], *more: Never, timeout: float | None = None
    ) -> Iterator[BlockingResult[R]]:
        """Yields each result when its job ends, successfully or not; raises TimeoutError `timeout` seconds after the
        call."""
        check_loop("app.sync.as_completed", "async for result in as_completed(…)")
        going_on = {result.id: result for result in _given("as_completed", results, more)}
        return _completed(going_on, ends_of(self._app, list(going_on), timeout), timeout or 0.0)


def _given(
    method: str, results: Iterable[BlockingResult[R]], more: tuple[object, ...]
) -> list[BlockingResult[R]]:
    return results_given(f"app.sync.{method}", results, more, "BlockingResult")


def _completed(
    going_on: dict[str, BlockingResult[R]], ends: Generator[tuple[str, End]], timeout: float
) -> Iterator[BlockingResult[R]]:
    every = len(going_on)
    with closing(ends):
        for job_id, end in ends:
            _raise_refusal(end)
            yield going_on.pop(job_id)
    if going_on:
        raise not_ended(len(going_on), every, timeout)


def _raise_refusal(end: End) -> None:
    """Raises the error of a job that this user of Redis may not read: such a job must not count as ended."""
    if isinstance(end, BrokerUnavailable):
        raise end
