"""The records in a picture of the keys: the fields that the invariants are about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from fennelq.manage.invariants.lines import Place
from fennelq.model.fields import LETTERS, STATUSES
from fennelq.model.job import Status

_STATUS, _PLACE, _IDEMPOTENCY, _ENDED, _STOPPING, _GATES, _LANE, _RUN, _EXPIRES, _TWIN = (
    LETTERS[name]
    for name in (
        *("status", "place", "idempotency", "ended", "stopping", "gates", "lane", "run", "expires", "twin"),
    )
)
_HAS_LEAVINGS: Final = (
    _IDEMPOTENCY,
    _STOPPING,
    _GATES,
    _TWIN,
    *(LETTERS[name] for name in ("watchers", "history", "kept_at_least")),
)

RECORD_FIELDS: Final = (_STATUS, _PLACE, _ENDED, _LANE, _RUN, _EXPIRES, *_HAS_LEAVINGS)
"""The fields of a record that are checked."""


class Record(NamedTuple):
    """The facts of a record that the invariants are about."""

    status: Status
    shown_status: str
    place: str
    idempotency: str
    expires_ms: int | None
    unmarked: bool
    """It has leavings, but the field `ended` is missing: the script that ends the job would not call them."""
    stopping: bool
    """It was asked to stop while it ran."""
    holds_key: bool
    """While it is alive, the key that it has taken must name it."""
    limits: Place | None
    twin: str
    """Where its second copy is; empty without one."""
    twin_runs: bool

    @classmethod
    def of(cls, fields: Mapping[str, str], expires_ms: int | None) -> Record:
        """From the fields of the record in the picture."""
        letter = fields.get(_STATUS)
        status = STATUSES.get(letter or "Q", Status.UNKNOWN)
        return cls(
            status=status,
            shown_status=status if status is not Status.UNKNOWN else repr(letter),
            place=fields.get(_PLACE, ""),
            idempotency=fields.get(_IDEMPOTENCY, ""),
            expires_ms=expires_ms,
            unmarked=any(name in fields for name in _HAS_LEAVINGS) and (_ENDED not in fields or not letter),
            stopping=_STOPPING in fields,
            holds_key=_holds_key(fields, status),
            limits=Place(status, fields.get(_PLACE, ""), fields.get(_LANE, ""), fields[_GATES])
            if _GATES in fields
            else None,
            twin=fields.get(_TWIN, "-").partition(" ")[0].strip("-"),
            twin_runs=" " in fields.get(_TWIN, ""),
        )


def _holds_key(fields: Mapping[str, str], status: Status) -> bool:
    """Whether no other job can have taken the key of this one, as far as its record shows: see `lua/lib/holder.lua`."""
    kind = fields.get(_IDEMPOTENCY, "")[:1]
    if kind == "=":
        return True
    # Once it has expired, or was asked to stop, it only waits to be cancelled.
    lets_go = _EXPIRES in fields or _STOPPING in fields or status is Status.DEAD
    return not lets_go and (kind == ">" or (kind in ("<", "^") and _RUN not in fields))
