"""Verbs for the keyed requests of programs: on which queue the job of each is."""

from __future__ import annotations

from typing import Any

from fennelq.broker.keys import AppKeys
from fennelq.broker.verb import Command, text


def claim(keys: AppKeys, request: str, queue: str, ttl_ms: int) -> Command[str]:
    """Take a request for this queue, unless another one has it; returns the queue that has it. A call that is repeated
    changes nothing."""

    def read(reply: Any) -> str:
        return queue if reply is None else text(reply)

    return Command(["SET", keys.request(request), queue, "NX", "GET", "PX", ttl_ms], read)
