"""Which event loop a process of the benchmark runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from importlib.util import find_spec
from typing import Any, Literal, TypeVar

LoopName = Literal["uvloop", "asyncio"]
Result = TypeVar("Result")


def run(main: Coroutine[Any, Any, Result], loop: LoopName) -> Result:
    """Run ``main`` to its end on the wanted loop; asking for a uvloop that is not installed is an error."""
    if loop == "asyncio":
        return asyncio.run(main)
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def uvloop_installed() -> bool:
    return find_spec("uvloop") is not None
