"""What the recorder asks Redis, what it logs about the database, and how far it is behind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from fennelq import clock, log
from fennelq.broker import verbs
from fennelq.broker.dispatch import pages
from fennelq.broker.keys import QueueKeys
from fennelq.broker.talk import Replies, Talk, ask
from fennelq.broker.trouble import lacks_permission
from fennelq.broker.verbs.ends import End, EndedRecord, Ends
from fennelq.errors import BrokerUnavailable, HistoryUnavailable

_RECORDS: Final = 250
"""Records per script call: they take a millisecond of the server."""
_MOST: Final = 5000
"""Records that are read before they are written."""
_LARGE: Final = 8
"""As many replies that the server has cut, because they had a megabyte of arguments, are read before they are
written: so the memory of a recorder is bounded, however large the arguments are."""
_ACKNOWLEDGED: Final = 500

_logger = log.get("fennelq.history")


def records_of(keys: QueueKeys, ends: Sequence[End]) -> Talk[tuple[Sequence[End], dict[str, EndedRecord]]]:
    """The first of these ends, and the records of their jobs, as far as they still exist."""
    jobs = [end.key for end in ends]
    found: dict[str, EndedRecord] = {}
    at = large = 0
    while at < min(len(jobs), _MOST) and large < _LARGE:
        page = jobs[at : at + _RECORDS]
        records = yield from ask(verbs.ends.ends_read(keys, page))
        found |= {job: record for job, record in zip(page, records, strict=False) if record is not None}
        at += len(records)
        large += len(records) < len(page)
    return ends[:at], found


def acknowledge(keys: QueueKeys, entries: Sequence[Ends], ends: Sequence[End]) -> Talk[None]:
    """Empty the arguments first: after a crash in between, the entries are read again."""
    for page in pages([end.key for end in ends if end.kind in "SN"], _ACKNOWLEDGED):
        yield from ask(verbs.ends.ends_done(keys, [], page))
    if entries:
        yield from ask(verbs.ends.ends_done(keys, [one.entry for one in entries], [], ends=len(ends)))


def behind(queues: Iterable[QueueKeys]) -> Talk[int | None]:
    """The number of reports of ended jobs that wait for a recorder; None when those of a queue cannot be read."""
    replies: Replies = yield [verbs.ends.behind(keys) for keys in queues]
    for reply in replies:
        if isinstance(reply, BrokerUnavailable) and not lacks_permission(reply):
            raise reply
    return None if any(isinstance(reply, Exception) for reply in replies) else sum(replies)


class StoreOutage:
    """Logs when the database of the history is away, and when it is back."""

    def __init__(self) -> None:
        self._since: float | None = None

    def begin(self, error: HistoryUnavailable) -> None:
        """Record that it is away."""
        if self._since is None:
            self._since = clock.monotonic()
            _logger.warning("history_waits", problem=str(error))

    def end(self) -> None:
        """Record that it can be used."""
        if self._since is not None:
            _logger.warning("history_goes_on", seconds=round(clock.monotonic() - self._since, 1))
            self._since = None
