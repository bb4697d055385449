"""The configuration of an executor. A supervisor passes it to its executors on their command line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from fennelq.broker.keys import LANES, QUARANTINE
from fennelq.errors import ConfigurationError

CANNOT_RUN = 78
"""Exit code of an executor that cannot run with these settings: a restart would not help."""

LIFESPAN_FAILED = 76
"""Exit code of an executor whose app has a lifespan that raised an error before the first job."""

DRAINED = 74
"""Exit code of an executor that a person has drained: the supervisor starts no successor."""

RECYCLED = 75
"""Exit code of an executor that should be replaced. Unlike 0 in a burst, it does not mean that no job is left."""

_NEW = ("metrics", "totals")
"""Fields that earlier versions do not know."""


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
    tasks: str | None = None
    """Patterns of task names, in place of queues: it serves the queues that carry these tasks and no others."""
    lanes: tuple[str, ...] = tuple(LANES.values())
    consumes: bool = True
    """Whether it takes jobs. Without, it only sees to the queues: due jobs, schedules, jobs of dead executors."""
    rate: float | None = None
    """The most jobs that it takes per second."""
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
    metrics: str = ""
    """How the executor counts for its supervisor: by `task`, by `queue`, or not at all."""
    totals: int = -1
    """A pipe to the supervisor, for what it has counted."""

    def for_quarantine(self) -> ExecutorConfig:
        """The same configuration for jobs in quarantine: it runs one at a time, until the quarantine lane is empty.
        Without the rate, because a burst ends when a rate holds back the rest."""
        return replace(self, concurrency=1, lanes=(QUARANTINE,), burst=True, rate=None)

    def to_text(self) -> str:
        """The configuration as text, without the fields of `more_to_text`."""
        return json.dumps({name: value for name, value in asdict(self).items() if name not in _NEW})

    def more_to_text(self) -> str:
        """The fields that earlier versions do not know. They have a word of their own on the command line, which an
        earlier version ignores: after a deploy that was rolled back in place, a supervisor of this version starts
        processes of an earlier one."""
        return json.dumps({name: value for name, value in asdict(self).items() if name in _NEW})

    @classmethod
    def from_text(cls, text: str, more: str = "{}") -> ExecutorConfig:
        """The configuration that `to_text` and `more_to_text` wrote. Fields that only a later version knows are
        ignored."""
        given: dict[str, Any] = {**json.loads(text), **json.loads(more)}
        given["lanes"] = tuple(given["lanes"])
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in given.items() if name in known})


def lanes_of(priorities: str | None) -> tuple[str, ...]:
    """The lanes that `--priority high,normal` names, in the order they are read; raises ConfigurationError."""
    if not priorities:
        return tuple(LANES.values())
    named = {part.strip() for part in priorities.split(",")}
    if unknown := named - set(LANES):
        raise ConfigurationError(f"priority {min(unknown)!r} is not one of high, normal, low")
    return tuple(lane for priority, lane in LANES.items() if priority in named)
