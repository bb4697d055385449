"""Sending many jobs with a library that has no call for it: a hundred concurrent ones at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

WIDTH = 100


async def gathered(send: Callable[[Any], Awaitable[Any]], arguments: Sequence[Any]) -> list[Any]:
    handles: list[Any] = []
    for first in range(0, len(arguments), WIDTH):
        handles += await asyncio.gather(*[send(argument) for argument in arguments[first : first + WIDTH]])
    return handles
