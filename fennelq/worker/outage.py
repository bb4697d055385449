"""Limits how often a worker logs that one of its parts fails, or that Redis as a whole cannot be used."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from fennelq import clock, log
from fennelq.broker.connection import Address
from fennelq.broker.diagnosis import diagnose
from fennelq.broker.trouble import LinkDown, NoReply, ReplyError, Trouble, classify

_logger = log.get("fennelq.worker.service")
_QUIET_FOR = 60.0
_MOST_REMEMBERED = 1000
_STALE = 15.0
"""Seconds. A part that is in trouble retries, and warns again, sooner than this."""
_LATE = 10.0
"""Seconds. A call that was under way when a connection failed may fail this much later, when Redis is back already."""
_CLOSED = (LinkDown, NoReply, ConnectionResetError, BrokenPipeError)
_BLIP = 1.0
"""Seconds. After a connection was closed, the next attempt shows whether Redis is in trouble, and the reason."""


class LogThrottle:
    """Limits the warnings of one part of a worker to one per minute for each kind of error and queue. Errors of Redis
    as a whole go to the `outage` that all parts share."""

    def __init__(self, what: str, outage: Outage | None = None) -> None:
        self._what, self._outage = what, outage
        self._last: dict[tuple[str, object], float] = {}

    def warn(self, error: BaseException, **facts: object) -> None:
        """Log the error, unless one of this kind was logged within the last minute."""
        if self._outage is not None:
            if _concerns_redis(error):
                self._outage.warn(self._what, error)
                return
            self._outage.note(error)
        kind = type(error).__name__
        like = (kind, facts.get("queue"))
        now = clock.monotonic()
        if self._last.get(like, -_QUIET_FOR) + _QUIET_FOR <= now:
            if len(self._last) >= _MOST_REMEMBERED:
                self._last.clear()
            self._last[like] = now
            _logger.warning("trouble", what=self._what, error=f"{kind}: {_text_of(error)}"[:500], **facts)

    def over(self) -> None:
        """Record that the work of this part has succeeded."""
        if self._outage is not None:
            self._outage.over(self._what)


class Outage:
    """Warns that Redis cannot be used, once a minute for all parts of a worker, and logs when it is back.

    Redis is back when no part is in trouble any more. Parts may call it from any thread. A connection that was closed
    and made anew with the first attempt is not logged.
    """

    def __init__(self, address: Address, event: str = "redis_trouble") -> None:
        self._address, self._event = address, event
        self._lock = threading.Lock()
        self._parts: dict[str, float] = {}
        """Parts that are in trouble → when each warned last."""
        self._since: float | None = None
        self._since_ms = 0
        self._silent_until = 0.0
        self._announced = False
        self._errors: dict[str, int] = {}

    @property
    def errors(self) -> Mapping[str, int]:
        """Kind of error → how many errors of Redis the parts have met so far."""
        with self._lock:
            return dict(self._errors)

    def note(self, error: BaseException) -> None:
        """Count an error, if it is one of Redis or of the connection to it."""
        if isinstance(error, ReplyError | OSError | EOFError):
            kind = classify(error).name.lower()
            with self._lock:
                self._errors[kind] = self._errors.get(kind, 0) + 1

    def warn(self, part: str, error: BaseException) -> None:
        """Record that a part fails with this error. Log it, unless an outage was logged within the last minute."""
        self.note(error)
        if self._noted(part, closed=type(error) in _CLOSED):
            since = clock.from_ms(self._since_ms).astimezone().isoformat(timespec="seconds")
            _logger.warning(self._event, problem=diagnose(self._address, error).sentence, since=since)

    def over(self, part: str) -> None:
        """Record that the work of a part has succeeded."""
        if self._since is None:
            return
        seconds = self._ended(part)
        if seconds is not None:
            _logger.warning("redis_is_back", redis=self._address.shown, seconds=round(seconds, 1))

    def _noted(self, part: str, *, closed: bool) -> bool:
        """Record that a part is in trouble; returns whether to log it."""
        now = clock.monotonic()
        with self._lock:
            if self._since is not None and not self._in_trouble(now):
                # The last outage has ended, although no part has called `over`: log the new one soon.
                self._announced = False
                self._silent_until = min(self._silent_until, now + _LATE)
                self._since = None
            if self._since is None:
                self._since, self._since_ms = now, clock.wall_ms()
            self._parts[part] = now
            if now < self._silent_until or (closed and now - self._since < _BLIP):
                return False
            self._silent_until, self._announced = now + _QUIET_FOR, True
            return True

    def _ended(self, part: str) -> float | None:
        """The duration of the outage that ends now, in seconds; None when no outage ends, or it was not logged."""
        now = clock.monotonic()
        with self._lock:
            self._parts.pop(part, None)
            if self._since is None or self._in_trouble(now):
                return None
            seconds, self._since = now - self._since, None
            self._parts.clear()
            if seconds >= _LATE:
                # Only after a long outage, the next outage is logged soon. If that were so after short ones too, one
                # slow part could fill the log with outages.
                self._silent_until = min(self._silent_until, now + _LATE)
            announced, self._announced = self._announced, False
            return seconds if announced else None

    def _in_trouble(self, now: float) -> bool:
        return any(now - last < _STALE for last in self._parts.values())


def _concerns_redis(error: BaseException) -> bool:
    """Whether the error is about Redis or the way to it, and not about the keys of one queue or a single command."""
    if isinstance(error, ReplyError) and error.word == "NOPERM":
        return False
    trouble = classify(error)
    return trouble.passes or trouble is Trouble.FATAL


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as inner:  # `__str__` may be the user's code, and may even raise SystemExit
        return f"(its message cannot be shown: {type(inner).__name__})"
