"""Counts wrong passwords per address: ten a minute, and then no more are looked at."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from ipaddress import IPv6Address
from typing import Final

from fennelq import clock

MOST: Final = 10
"""Failures of an address within WITHIN."""
WITHIN: Final = 60.0
_ADDRESSES: Final = 10_000
"""The most addresses that are remembered."""


class Failures:
    """The failures of the last minute, by address."""

    def __init__(self) -> None:
        self._times: dict[str, deque[float]] = {}
        self._looked_at = Counter[str]()
        """Passwords that are being looked at, by address: each may turn out to be wrong."""
        self._decided = asyncio.Event()

    @asynccontextmanager
    async def attempt(self, address: str) -> AsyncGenerator[float]:
        """Around the look at a password: yields the seconds until this address may try again, 0 when it may now. Of
        many that come at once, it lets no more be looked at than may still be wrong."""
        owner = _of_one_owner(address)
        while not (wait := self.wait(address)) and len(self._lately(owner)) + self._looked_at[owner] >= MOST:
            await self._decided.wait()
        self._looked_at[owner] += 1
        try:
            yield wait
        finally:
            self._looked_at[owner] -= 1
            self._looked_at += Counter()  # forgets the addresses of which none is left
            decided, self._decided = self._decided, asyncio.Event()
            decided.set()

    def add(self, address: str) -> None:
        """A wrong password came from this address."""
        address = _of_one_owner(address)
        times = self._times.pop(address, None) or deque[float](maxlen=MOST)
        times.append(clock.monotonic())
        while len(self._times) >= _ADDRESSES:  # forget the address whose last failure is the oldest
            self._times.pop(next(iter(self._times)))
        self._times[address] = times

    def wait(self, address: str) -> float:
        """Seconds until this address may try again; 0 when it may now."""
        left = self._lately(_of_one_owner(address))
        return WITHIN - (clock.monotonic() - left[0]) if len(left) >= MOST else 0.0

    def _lately(self, owner: str) -> list[float]:
        now = clock.monotonic()
        return [one for one in self._times.get(owner, ()) if now - one < WITHIN]


def _of_one_owner(address: str) -> str:
    """The address, or the part of one of version 6 that a provider gives to one customer: the customer has 2^64 of
    them."""
    if ":" not in address:
        return address
    try:
        one = IPv6Address(address)
    except ValueError:
        return address
    return str(one.ipv4_mapped or one.packed[:8].hex())
