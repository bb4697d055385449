"""Which jobs a recorder of the history records."""

from __future__ import annotations

import zlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from fennelq.broker.verbs.ends import STATUSES, End
from fennelq.model.job import Status


@dataclass(frozen=True, slots=True)
class Choice:
    """Which jobs are recorded."""

    only: Collection[Status] = ()
    """With these ends; every end when it is empty."""
    sample: float = 1.0
    """This share of the jobs. All dead jobs are recorded."""

    def has(self, queue: str, end: End) -> bool:
        """Whether this end is recorded. It depends on the job only, so every recorder decides the same."""
        status = STATUSES[end.kind]
        if self.only and status not in self.only:
            return False
        if self.sample >= 1 or status == Status.DEAD:
            return True
        return zlib.crc32(f"{queue}:{end.key}".encode()) < self.sample * (1 << 32)


EVERY_JOB: Final = Choice()
