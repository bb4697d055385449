"""Counts wrong passwords per address: ten a minute, and then no more are looked at."""

from __future__ import annotations

from collections import deque
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
        times = self._times.get(_of_one_owner(address), ())
        left = [one for one in times if clock.monotonic() - one < WITHIN]
        return WITHIN - (clock.monotonic() - left[0]) if len(left) >= MOST else 0.0


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
