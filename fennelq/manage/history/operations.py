"""Operations in the history: what `fennelq audit` lists, for longer than Redis keeps it.

A recorder copies the lines of the stream `audit` from time to time. It begins at the newest line that the database
has, and an operation that is written again replaces only what is older: so any number of recorders may do this, and
may be killed at any time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from fennelq import clock
from fennelq.manage.audit import matches
from fennelq.manage.audit_entry import LONGEST, AuditEntry, AuditState
from fennelq.model.units import epoch_ms

if TYPE_CHECKING:
    from fennelq.manage.history.sql import Cursor

_COLUMNS: Final = (
    *("id", "began", "ended", "line", "who", "via", "what", "target", "options"),
    *("planned", "done", "state", "outcome", "value_before", "value_after"),
)
_LIST: Final = ", ".join(_COLUMNS)
_PUT: Final = f"""
INSERT INTO audit ({_LIST}) VALUES ({", ".join("?" * len(_COLUMNS))})
ON CONFLICT (id) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in _COLUMNS[1:])}
WHERE excluded.line >= audit.line"""
_NEWEST: Final = "SELECT COALESCE(max(line), 0) FROM audit"
_FIND: Final = f"""
SELECT {_LIST} FROM audit WHERE began >= ? AND (began, id) < (?, ?) ORDER BY began DESC, id DESC LIMIT ?"""
_PAGE: Final = 500


class Wanted(NamedTuple):
    """Which operations to find."""

    since_ms: int = 0
    until_ms: float = float("inf")
    who: str | None = None
    what: str | None = None


def put(cursor: Cursor, entries: Sequence[AuditEntry]) -> None:
    """Write operations. One with an end stays as it is when only its begin is written again."""
    for entry in entries:
        cursor.run(_PUT, _row_of(entry))


def newest_line(cursor: Cursor) -> int:
    """When the newest line was written that the database has, in ms since the epoch; 0 without one."""
    ((newest,),) = cursor.run(_NEWEST)
    return int(newest)


def found(cursor: Cursor, wanted: Wanted) -> Iterator[AuditEntry]:
    """The operations that match, the newest first."""
    place: tuple[int, str] = (1 << 62 if wanted.until_ms == float("inf") else int(wanted.until_ms) + 1, "")
    while rows := cursor.run(_FIND, (wanted.since_ms, *place, _PAGE)):
        for row in rows:
            entry = _entry_of(row)
            if matches(entry, wanted.who, wanted.what):
                yield entry
        place = (rows[-1][1], rows[-1][0])


def _row_of(entry: AuditEntry) -> tuple[object, ...]:
    began = epoch_ms(entry.at)
    ended = None if entry.ended_at is None else epoch_ms(entry.ended_at)
    row = (
        *(entry.id, began, ended, max(began, ended or 0), entry.who, entry.via, entry.what, entry.target),
        *(entry.filter, entry.planned, entry.done, entry.state, entry.outcome, entry.before, entry.after),
    )
    # fennelq cuts texts before it writes a line; another client of Redis may have written a longer one.
    return tuple(value[:LONGEST] if isinstance(value, str) else value for value in row)


def _entry_of(row: Sequence[Any]) -> AuditEntry:
    key, began, ended, _, who, via, what, target, options, planned, done, state, outcome, before, after = row
    return AuditEntry(
        id=key,
        at=clock.from_ms(began),
        ended_at=None if ended is None else clock.from_ms(ended),
        who=who,
        via=via,
        what=what,
        target=target,
        filter=options,
        planned=planned,
        done=done,
        state=cast(AuditState, state),
        outcome=outcome,
        before=before,
        after=after,
    )
