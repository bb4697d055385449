"""Runs a coroutine for code without an event loop."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from fennelq.loops import running_loop

A = TypeVar("A")


def in_a_loop(work: Callable[[], Awaitable[A]]) -> A:
    """Run it to its end in a loop of its own. On a thread whose loop runs already, another thread has that loop."""

    async def run() -> A:
        return await work()

    if running_loop() is None:
        return asyncio.run(run())
    with ThreadPoolExecutor(1, thread_name_prefix="fennelq-testing") as thread:
        context = contextvars.copy_context()
        return thread.submit(context.run, lambda: asyncio.run(run())).result()
