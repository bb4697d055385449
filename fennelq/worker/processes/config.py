"""The configuration of an executor. A supervisor passes it to its executors as one argument of their command line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from fennelq.broker.keys import LANES, QUARANTINE
from fennelq.errors import ConfigurationError

CANNOT_RUN = 78
"""Exit code of an executor that cannot run with these settings: a restart would not help."""

LIFESPAN_FAILED = 76
"""Exit code of an executor whose app has a lifespan that raised an error before the first job."""

RECYCLED = 75
"""Exit code of an executor that should be replaced. Unlike 0 in a burst, it does not mean that no job is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorConfig:
    """The configuration of an executor."""

    app: str = ""
    """Where the app is, for an executor in a process of its own: `module:name`."""
    folder: str = "."
    """The folder in which the app's modules are looked for first."""
    log_format: str = "auto"
    log_level: str = "info"
    log_errors: str = "traceback"
    log_config: str = "fennelq"
    name: str = ""
    concurrency: int = 32
    queues: str | None = None
    lanes: tuple[str, ...] = tuple(LANES.values())
    burst: bool = False
    grace: float = 25.0
    max_jobs: int | None = None
    """The number of jobs after which the executor stops and is replaced."""
    max_rss: int | None = None
    """The bytes of memory above which the executor stops and is replaced."""
    lifeline: int = -1
    """A pipe that the supervisor holds open. The kernel closes it when the supervisor ends, even if it was killed."""
    signals: int = -1
    """A pipe to the supervisor, for signals."""

    def for_quarantine(self) -> ExecutorConfig:
        """The same configuration for jobs in quarantine: it runs one at a time, until the quarantine lane is empty."""
        return replace(self, concurrency=1, lanes=(QUARANTINE,), burst=True)

    def to_text(self) -> str:
        """The configuration as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> ExecutorConfig:
        """The configuration that `to_text` wrote."""
        fields: dict[str, Any] = json.loads(text)
        fields["lanes"] = tuple(fields["lanes"])
        return cls(**fields)


def lanes_of(priorities: str | None) -> tuple[str, ...]:
    """The lanes that `--priority high,normal` names, in the order they are read; raises ConfigurationError."""
    if not priorities:
        return tuple(LANES.values())
    named = {part.strip() for part in priorities.split(",")}
    if unknown := named - set(LANES):
        raise ConfigurationError(f"priority {min(unknown)!r} is not one of high, normal, low")
    return tuple(lane for priority, lane in LANES.items() if priority in named)
