"""The addresses of this machine."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

LOCAL_NAMES: Final = frozenset({"localhost", "localhost.localdomain"})


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches this address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() in LOCAL_NAMES
