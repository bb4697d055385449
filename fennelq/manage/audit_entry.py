"""An operation that was recorded, and the two lines by which it is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from fennelq import clock
from fennelq.broker.verbs.audit import Line
from fennelq.model.units import epoch_ms

AuditState = Literal["done", "failed", "interrupted", "not finished"]
"""How an operation ended; `not finished` while it goes on, and when its process has died."""

LONGEST: Final = 1000
"""Characters of a text that are kept."""
_TEXTS: Final = ("who", "via", "what", "target", "filter", "outcome", "before", "after")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """An operation that changes something, as the record shows it."""

    id: str
    at: datetime
    """When it began, by the server's clock."""
    who: str
    """The user and the host: `ada@web-1`."""
    via: str
    """Where it came from: `cli`, `top`, `api`."""
    what: str
    """The operation: `dlq replay`, `queue pause`."""
    target: str = ""
    """What it was applied to: the name of a queue, ids of jobs, names of schedules."""
    filter: str = ""
    """The options that selected what it was applied to."""
    planned: int | None = None
    """How many jobs it was going to change; None when it did not count them before."""
    state: AuditState = "not finished"
    """`not finished` when it is under way, or when its process has crashed."""
    ended_at: datetime | None = None
    done: int | None = None
    """How many jobs, schedules or limits it has changed."""
    outcome: str = ""
    """The outcome in words, or the error."""
    before: str = ""
    """The value before the operation, such as `5` for a limit; empty for operations without one."""
    after: str = ""
    """The value after it."""


def line_of(phase: str, entry: AuditEntry) -> Mapping[str, str]:
    """The fields of a line. Empty ones are left out."""
    fields = {"id": entry.id, "phase": phase}
    fields |= {name: _cut(getattr(entry, name)) for name in _TEXTS}
    fields |= {
        name: str(value) for name in ("planned", "done") if (value := getattr(entry, name)) is not None
    }
    if phase == "end":
        fields |= {"state": entry.state, "begun": str(epoch_ms(entry.at))}
    return {name: value for name, value in fields.items() if value}


def _cut(text: str) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def entry_of(key: str, first: Line | None, second: Line | None) -> AuditEntry:
    """The operation of these lines. A line of a later version may have other fields and states."""
    fields = {**(first.fields if first else {}), **(second.fields if second else {})}
    begun = _number(fields.get("begun")) or (second.at_ms if second else 0)
    return AuditEntry(
        id=key,
        at=clock.from_ms(first.at_ms if first else begun),
        **{name: fields.get(name, "") for name in _TEXTS},
        planned=_number(fields.get("planned")),
        done=_number(fields.get("done")),
        state=_state_of(fields["state"]) if second and "state" in fields else "not finished",
        ended_at=clock.from_ms(second.at_ms) if second else None,
    )


def _state_of(text: str) -> AuditState:
    states: Mapping[str, AuditState] = {"failed": "failed", "interrupted": "interrupted"}
    return states.get(text, "done")


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 14 else None
