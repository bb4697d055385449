"""What a row is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from benchmarks.arena import Arena
from benchmarks.figures import Line, Sample


class Row(ABC):
    """A measurement and the table lines it fills. Its fields are sizes: a quick row is another value."""

    name: ClassVar[str]
    lines: ClassVar[Sequence[Line]]
    with_floor: ClassVar[bool] = True
    with_peers: ClassVar[bool] = False
    most_repeats: ClassVar[int | None] = None

    @abstractmethod
    def measure(self, arena: Arena) -> Sample:
        """One sample of the arena's contestant."""
