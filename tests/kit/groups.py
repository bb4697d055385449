"""Groups of dead jobs, as they are after a thousand kinds."""

from __future__ import annotations

from fennelq.broker.keys import queue_keys
from tests.kit.server import Server


def count_as_other(server: Server, app: str, queue: str) -> None:
    """Count the only group of this queue as `other`."""
    keys = queue_keys(app, queue)
    with server.client() as client:
        for name in ("dlq:g", "dlq:f", "dlq:l"):
            ((group, value),) = [
                (group, value) for group, value in client.hgetall(keys[name]).items() if group != b"@"
            ]
            client.hdel(keys[name], group)
            client.hset(keys[name], "other", value)
