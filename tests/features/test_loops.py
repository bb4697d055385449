"""One app on several event loops, each in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fennelq import App, loops


class Interleaved(App):
    """An app in which another thread acts right after the so many-th time that `_last` has been read."""

    between: Callable[[], None] | None = None
    reads = 0
    _value: Any = None

    @property
    def _last(self) -> Any:
        value = self._value
        if self.between is not None:
            self.reads -= 1
            if self.reads == 0:
                between, self.between = self.between, None
                between()
        return value

    @_last.setter
    def _last(self, value: Any) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._value = value


@pytest.mark.parametrize("reads", [1, 2])
@pytest.mark.parametrize("what", ["closes its loop's client", "uses a client of its own"])
async def test_a_loop_gets_its_own_client_whatever_another_thread_does_meanwhile(
    redis_url: str, what: str, reads: int
) -> None:
    app = Interleaved("shop", redis_url=redis_url)

    async def elsewhere() -> object:
        client = app.client
        if what == "closes its loop's client":
            await app.close()
        return client

    mine, others = app.client, list[object]()
    with ThreadPoolExecutor(1) as thread:
        app.reads = reads
        app.between = lambda: others.append(thread.submit(asyncio.run, elsewhere()).result(10))
        assert [app.client for _ in range(3)] == [mine] * 3
    assert len(others) == 1
    assert others[0] is not mine
    await app.close()


async def test_a_loop_runs_jobs_until_the_last_of_its_executors_has_ended() -> None:
    loop = asyncio.get_running_loop()
    first, second = loops.executes(), loops.executes()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert loop in loops.executing
    second.__exit__(None, None, None)
    assert loop not in loops.executing
