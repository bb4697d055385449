"""The invariants of the index of dead jobs: it equals a recount of the entries.

An entry that shows that it is counted adds one to its group, or to the group of the others when it has none of its own.
No entry of a group is older than its `first` or newer than its newest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from fennelq.broker.verbs.dead import CURSOR, OTHERS, facts_in, order
from fennelq.manage.invariants.picture import Hash, Key
from fennelq.model.fingerprint import fingerprint_of, is_fingerprint

Found = tuple[str | None, str]
"""The key of a job, and the sentence."""

MOST_GROUPS: Final = 1000
"""Groups of a queue, besides that of the others."""
_FACTS: Final = {"first", "message", "reason", "task", "type"}


@dataclass
class DeadGroups:
    """The keys of the index of one queue."""

    numbers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Group → how many."""
    looks: Mapping[str, str] = field(default_factory=dict[str, str])
    """Group → its first job."""
    newest: Mapping[str, str] = field(default_factory=dict[str, str])
    """Group → its newest entry."""

    def add(self, key: Key, name: str) -> bool:
        """Add a key of the index; False when it is another key."""
        match key.content:
            case Hash(fields) if name == "dlq:g":
                self.numbers = fields
            case Hash(fields) if name == "dlq:f":
                self.looks = fields
            case Hash(fields) if name == "dlq:l":
                self.newest = fields
            case _:
                return False
        return True

    def problems(self, dead: Mapping[str, Mapping[str, str]]) -> Iterator[Found]:
        """All problems of the index. `dead` has the entries of the DLQ, with their fields."""
        entries: dict[str, list[str]] = {}
        for entry, fields in dead.items():
            if self._counts(entry, fields.get("f", "")):
                entries.setdefault(self._group_of(fields), []).append(entry)
        for text in (
            *self._wrong_numbers(Counter({group: len(of) for group, of in entries.items()})),
            *self._loose_ends(),
        ):
            yield None, f"the index of dead jobs {text}"
        for group, of in entries.items():
            for text in self._wrong_bounds(group, sorted(of, key=order)):
                yield None, f"the index of dead jobs {text}"

    def _counts(self, entry: str, given: str) -> bool:
        cursor, _, bound = self.numbers.get(CURSOR, "").partition(" ")
        if is_fingerprint(given) and (not bound or order(entry) > order(bound)):
            return True
        return bool(cursor) and order(entry) <= order(cursor)

    def _group_of(self, fields: Mapping[str, str]) -> str:
        given = fields.get("f", "")
        if not is_fingerprint(given):
            given = fingerprint_of(*(fields.get(name, "") for name in "yte"))
        return given if given in self.numbers else OTHERS

    def _wrong_numbers(self, recount: Counter[str]) -> Iterator[str]:
        for group in (self.numbers.keys() | recount.keys()) - {CURSOR}:
            shown = self.numbers.get(group, "0")
            if shown != str(recount[group]) or not recount[group]:
                yield f"has {shown} of the group {group!r}, and there are {recount[group]}"
        if len(self.numbers.keys() - {CURSOR, OTHERS}) > MOST_GROUPS:
            yield f"has more than {MOST_GROUPS} groups"

    def _loose_ends(self) -> Iterator[str]:
        groups = set(self.numbers) - {CURSOR}
        for name, known in (("dlq:f", self.looks), ("dlq:l", self.newest)):
            if set(known) != groups:
                yield f"has other groups in {name} than in dlq:g: {sorted(set(known) ^ groups)[:5]}"
        if self.numbers and not groups and " " not in self.numbers[CURSOR]:
            yield "is empty, and its key is still there"

    def _wrong_bounds(self, group: str, entries: list[str]) -> Iterator[str]:
        look = facts_in(self.looks.get(group, ""))
        if look.keys() != _FACTS:
            yield f"shows of the group {group!r} only {sorted(look)}"
        elif order(look["first"]) > order(entries[0]):
            yield f"begins the group {group!r} at {look['first']}, and there is {entries[0]}"
        if group in self.newest and order(self.newest[group]) < order(entries[-1]):
            yield f"ends the group {group!r} at {self.newest[group]}, and there is {entries[-1]}"
