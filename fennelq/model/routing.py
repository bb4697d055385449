"""The queues that a worker serves, and their weights."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import NamedTuple, Self

from fennelq.errors import ConfigurationError
from fennelq.model.checks import valid_name

_WEIGHTED = re.compile(r"([^:]+)(?::(\d+))?")


class Routing(NamedTuple):
    """The queues of a worker.

    `a,b` is strict: it reads b when a is empty. `a:3,b:1` is weighted. `mail.*` stands for all queues whose names begin
    like this. Without names it serves every queue, with equal weights.
    """

    weights: Mapping[str, int]
    strict: bool = False
    every: bool = False
    """True when it also serves queues that become known later."""
    parts: tuple[tuple[str, int], ...] = ()
    """The names and patterns as given, with their weights, when one of them is a pattern."""
    places: Mapping[str, int] = MappingProxyType({})
    """Of a strict routing: queue → its place in the order. All queues of a pattern share the place of the pattern."""

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """The value of `-q`; raises ConfigurationError when it cannot be read."""
        if not text:
            return cls({}, every=True)
        parts = [_WEIGHTED.fullmatch(part.strip()) for part in text.split(",")]
        if not all(parts):
            raise ConfigurationError(
                f"queues {text!r} cannot be read: write mail,default or mail:3,default:1 or mail.*"
            )
        named = [(part[1], part[2]) for part in parts if part]
        weights = {_valid(name): int(weight or 1) for name, weight in named}
        if not all(weights.values()):
            raise ConfigurationError(f"queues {text!r}: a weight is 1 or more")
        strict = len(weights) > 1 and not any(weight for _, weight in named)
        places = {name: place for place, name in enumerate(weights)} if strict else {}
        if any(map(is_pattern, weights)):
            names = {name: weight for name, weight in weights.items() if not is_pattern(name)}
            return cls(names, strict, parts=tuple(weights.items()), places=places)
        return cls(weights, strict, places=places)

    def place(self, queue: str) -> int:
        """The place of a queue in a strict order. Without such an order, all have the same."""
        return self.places.get(queue, 0)

    @property
    def patterns(self) -> list[str]:
        """The patterns among the given names."""
        return [name for name, _ in self.parts if is_pattern(name)]

    def including(self, queues: Iterable[str]) -> Self:
        """The same with those of these queues that it serves: all of them, or those that fit a pattern."""
        if self.every:
            return self._replace(weights={**dict.fromkeys(sorted(queues), 1), **self.weights})
        if not self.parts:
            return self
        weights: dict[str, int] = {}
        places: dict[str, int] = {}
        # A queue has the place and the weight of its own name, or of the first pattern that it fits.
        for place, name, weight in self._expanded(sorted(queues)):
            if name not in weights:
                weights[name], places[name] = weight, place
        return self._replace(weights=weights, places=places if self.strict else {})

    def _expanded(self, queues: list[str]) -> Iterator[tuple[int, str, int]]:
        names = {name for name, _ in self.parts}
        for place, (name, weight) in enumerate(self.parts):
            if is_pattern(name):
                fitting = (queue for queue in queues if queue not in names and fits(queue, name))
                yield from ((place, queue, weight) for queue in fitting)
            else:
                yield place, name, weight


def fits(queue: str, pattern: str) -> bool:
    """Whether a pattern stands for this queue, among others."""
    return fnmatchcase(queue, pattern)


def is_pattern(name: str) -> bool:
    """Whether this stands for several queues."""
    return "*" in name


def _valid(name: str) -> str:
    # What a pattern consists of is checked as if it were a name.
    if is_pattern(name):
        valid_name("queue", name.replace("*", "x"))
        return name
    return valid_name("queue", name)
