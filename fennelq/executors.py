"""The facts that the executors of an app report: which are alive, which queues they serve, which jobs they cannot run.

The facts are for people: fennelq does not use them to decide which executor owns a job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, cast

import orjson

from fennelq.broker.keys import LANES, QUARANTINE
from fennelq.model.routing import fits

Facts = dict[str, Any]

_SILENT_BEATS, _SILENT_MS = 3, 5000
_QUEUES_SHOWN = 5
_ENDING = ("draining", "stopping")


class Executors:
    """The executors of an app at one moment, by the server's clock."""

    def __init__(self, reported: Mapping[str, bytes], now_ms: int) -> None:
        self.now_ms = now_ms
        self.facts = {name: facts_of(raw) for name, raw in sorted(reported.items())}
        """By name, also of executors that have ended."""

    @cached_property
    def living(self) -> dict[str, Facts]:
        """The executors that have reported lately."""
        return {name: facts for name, facts in self.facts.items() if self._lives(facts)}

    def state(self, name: str) -> str:
        """The state of an executor, as far as its facts show it."""
        facts = self.facts[name]
        if "died" in facts:
            return f"ended: {facts['died']}"
        if name not in self.living:
            return "silent"
        state, blocked = facts.get("state"), facts.get("blocked")
        if state in _ENDING:
            return str(state)
        if isinstance(blocked, dict) and "ago" not in blocked:
            return "blocked"
        return "starting" if state == "starting" else "works"

    def is_gone(self, name: str) -> bool:
        """Whether an executor is known to have ended, or to be silent."""
        return name in self.facts and name not in self.living

    def serving(self, queue: str, lane: str | None = None) -> list[str]:
        """The living executors that take jobs from a queue; with `lane`, from this lane of it."""
        return [name for name, facts in self._readers(queue) if lane is None or _reads(facts, lane)]

    def unserved(self, queue: str, lane: str | None = None) -> str | None:
        """Why no executor takes jobs from there, and how to start one that does; None when one does."""
        if not self.living:
            return "no worker runs; start one with `fennelq worker`"
        if all(facts.get("consumes") is False for facts in self.living.values()):
            return "the running workers take no jobs (--no-consume); start one with `fennelq worker`"
        if self.serving(queue, lane):
            return None
        if lane is not None and self.serving(queue):
            priority = next((name for name, stream in LANES.items() if stream == lane), "normal")
            return f"no worker takes jobs of {priority} priority from queue {queue!r}; start one without --priority"
        command = f"start one with `fennelq worker -q {queue}`, or without -q for every queue"
        return f"no worker serves queue {queue!r}{self._served()}; {command}"

    def ignoring_pause(self, queue: str) -> tuple[str, ...]:
        """The living executors that serve a queue and go on when it is paused. The versions of fennelq that know no
        pause do not report their version."""
        return tuple(
            name for name, facts in self.living.items() if _serves(facts, queue) and "version" not in facts
        )

    def too_old_for(self, queue: str) -> list[str]:
        """Why some of the executors that serve a queue cannot run some of its jobs, in a sentence for each reason."""
        met: dict[str, int] = {}
        for _, facts in self._readers(queue):
            for why in {
                str(one.get("why")) for one in _dicts(facts.get("too_old_for")) if one.get("queue") == queue
            }:
                met[why] = met.get(why, 0) + 1
        number = len(self.serving(queue))
        return [
            f"{count} of {number} executor{'' if number == 1 else 's'} cannot run some of them: {why}"
            for why, count in sorted(met.items())
        ]

    def _lives(self, facts: Facts) -> bool:
        silent_ms = self.now_ms - number(facts, "beat_ms")
        longest = max(_SILENT_MS, _SILENT_BEATS * 1000 * number(facts, "interval"))
        return "died" not in facts and silent_ms < longest

    def _readers(self, queue: str) -> Iterator[tuple[str, Facts]]:
        """The living executors that take jobs of any priority from a queue, without those for the quarantine lane."""
        for name, facts in self.living.items():
            if takes_from(facts, queue):
                yield name, facts

    def _served(self) -> str:
        queues = sorted(
            {str(queue) for facts in self.living.values() for queue in _list(facts.get("queues"))}
        )
        shown = ", ".join(queues[:_QUEUES_SHOWN]) + (", …" if len(queues) > _QUEUES_SHOWN else "")
        return f" (the running ones serve: {shown})" if shown else ""


def recent_of(lease: float) -> int:
    """The milliseconds for which an executor counts as alive after it was last present."""
    return round(2000 * lease)


def takes_from(facts: Mapping[str, Any], queue: str) -> bool:
    """Whether an executor with these facts takes jobs of any priority from a queue. Those for the quarantine lane do
    not."""
    return _serves(facts, queue) and facts.get("lanes") != [QUARANTINE]


def _serves(facts: Mapping[str, Any], queue: str) -> bool:
    if facts.get("every_queue") is True or queue in _list(facts.get("queues")):
        return True
    return any(fits(queue, str(pattern)) for pattern in _list(facts.get("patterns")))


def _reads(facts: Facts, lane: str) -> bool:
    # Executors that report no lanes read all of them. For the quarantine lane, the supervisor of an executor that
    # serves the queue starts another executor.
    return "lanes" not in facts or lane == QUARANTINE or lane in _list(facts["lanes"])


def facts_of(raw: bytes) -> Facts:
    """The facts that an executor has reported; empty when they cannot be read."""
    try:
        facts: Any = orjson.loads(raw)
    except ValueError:
        return {}
    return cast("Facts", facts) if isinstance(facts, dict) else {}


def number(facts: Facts, name: str) -> float:
    """A fact that is a number; 0 when it is missing or not a number."""
    value = facts.get(name)
    return value if isinstance(value, int | float) else 0


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType]


def _dicts(value: object) -> list[Facts]:
    return [cast("Facts", one) for one in _list(value) if isinstance(one, dict)]
