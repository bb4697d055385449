"""Requests to stop a run that this executor does not hold yet.

The message of a request may arrive before the reply to the fetch that delivers the job. So requests for unknown tokens
are kept for a few seconds. Most of them are for runs that have just ended, and are never needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fennelq import clock

MOST: Final = 1000
SECONDS: Final = 10.0
"""Longer than a reply may be late: then the connection is closed, and the entry is handed back."""

_Token = tuple[str, str, str]


class EarlyRequests:
    """At most `MOST` requests."""

    def __init__(self) -> None:
        self.by_token: dict[_Token, tuple[float, str]] = {}
        """Until when each is kept, and its reason; the oldest first. While it is empty, `take` need not be called."""

    def add(self, token: _Token, why: str) -> None:
        """Keep a request for a while; the oldest is dropped when there are too many."""
        self.by_token.pop(token, None)
        self.by_token[token] = (clock.monotonic() + SECONDS, why)
        if len(self.by_token) > MOST:
            del self.by_token[next(iter(self.by_token))]

    def take(self, token: _Token) -> str | None:
        """Why this run was asked to stop; None when it was not, or too long ago."""
        for old in list(self._old()):
            del self.by_token[old]
        kept = self.by_token.pop(token, None)
        return kept[1] if kept else None

    def _old(self) -> Iterator[_Token]:
        now = clock.monotonic()
        for token, (until, _) in self.by_token.items():
            if until > now:
                return
            yield token
