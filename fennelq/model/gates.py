"""The gates of a job: its limits, as its record names them: `c2:account/17 r100000/1:send t1:tenant/9`.

Each has a kind, its numbers, and a name: that of the limit; if this has a key, a slash and the key's value follow.
`lua/lib/lines.lua` says what they do."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

CONCURRENCY: Final = "c"
RATE: Final = "r"
TURN: Final = "t"

LATEST: Final = "latest:"
"""The names of the gates of `dedupe="latest"` begin with this."""

_GATE: Final = re.compile(r"([a-z])(\d*)(?:/(\d+))?:(\S+)")


class Gate(NamedTuple):
    """A gate that a job has to pass before it starts."""

    kind: str
    number: int
    """Concurrency and turns: how many it lets through. Rate: microseconds between two starts; 0 for a rate that only
    RateLimited closes."""
    burst: int
    """Rate: how many may start at once after a quiet time."""
    name: str

    def __str__(self) -> str:
        burst = f"/{self.burst}" if self.kind == RATE else ""
        return f"{self.kind}{self.number}{burst}:{self.name}"

    @property
    def id(self) -> str:
        """The part of its keys in Redis. A turn has one per lane: there, `@` and the lane follow."""
        return f"{self.kind}:{self.name}"

    @property
    def definition(self) -> str:
        """What all gates of one limit have in common."""
        return definition_of(self.id)


def definition_of(gate: str) -> str:
    """The limit to which a gate belongs, from the gate's id."""
    return gate.partition("@")[0].partition("/")[0]


def gates_in(text: str) -> list[Gate]:
    """The gates that a record names."""
    return [
        Gate(kind, int(number or 0), int(burst or 1), name)
        for kind, number, burst, name in _GATE.findall(text)
    ]


def renewed(text: str, gates: str) -> str:
    """The gates of a record, with these in place of those of the same limits. The others stay: the call itself has
    named them, or the code does not have them any more."""
    new = gates_in(gates)
    known = {gate.definition for gate in new}
    return " ".join(map(str, [*new, *(gate for gate in gates_in(text) if gate.definition not in known)]))


def line_of(text: str, lane: str) -> str:
    """The line in which jobs with these gates wait."""
    return f"{'+'.join(gate.id for gate in gates_in(text))}@{lane}"


def in_words(gate: str) -> str:
    """The id of a gate, for people: `account/17`, `the rate send`, `the turn of tenant/9`."""
    kind, _, name = gate.partition("@")[0].partition(":")
    if name.startswith(LATEST):
        return "the end of the earlier job of its key"
    return {CONCURRENCY: f"the limit {name}", RATE: f"the rate {name}", TURN: f"the turn of {name}"}.get(
        kind, gate
    )
