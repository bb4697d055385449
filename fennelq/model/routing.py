"""The queues that a worker serves, and the order in which it reads them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Self

from fennelq.errors import ConfigurationError
from fennelq.model.checks import valid_name

_WEIGHTED = re.compile(r"([^:]+)(?::(\d+))?")


class Routing(NamedTuple):
    """Decides which queue to read next.

    `a,b` is strict: it reads b when a is empty. `a:3,b:1` is weighted. Without names it serves every queue, with equal
    weights.
    """

    weights: Mapping[str, int]
    strict: bool = False
    every: bool = False
    """True when it also serves queues that become known later."""

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """The value of `-q`; raises ConfigurationError when it cannot be read."""
        if not text:
            return cls({}, every=True)
        parts = [_WEIGHTED.fullmatch(part.strip()) for part in text.split(",")]
        if not all(parts):
            raise ConfigurationError(
                f"queues {text!r} cannot be read: write mail,default or mail:3,default:1"
            )
        named = [(part[1], part[2]) for part in parts if part]
        weights = {valid_name("queue", name): int(weight or 1) for name, weight in named}
        if not all(weights.values()):
            raise ConfigurationError(f"queues {text!r}: a weight is 1 or more")
        return cls(weights, strict=len(weights) > 1 and not any(weight for _, weight in named))

    def including(self, queues: Iterable[str]) -> Self:
        """The same with these queues added, if it serves every queue."""
        if not self.every:
            return self
        return self._replace(weights={**dict.fromkeys(sorted(queues), 1), **self.weights})

    def order(self, chance: Callable[[], float] = random.random) -> list[str]:
        """The queues in the order of one round: in the given order when strict, otherwise random by weight."""
        if self.strict or len(self.weights) == 1:
            return list(self.weights)
        return sorted(self.weights, key=lambda queue: chance() ** (1 / self.weights[queue]), reverse=True)
