"""All calls of Redis, by subject."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fennelq.broker.verbs import jobs, queues

if TYPE_CHECKING:
    from fennelq.broker.verbs import (
        audit,
        dead,
        ends,
        executors,
        lines,
        operations,
        outbox,
        requests,
        runs,
        schedules,
        search,
        server,
        survey,
        times,
    )

__all__ = [
    "audit",
    "dead",
    "ends",
    "executors",
    "jobs",
    "lines",
    "operations",
    "outbox",
    "queues",
    "requests",
    "runs",
    "schedules",
    "search",
    "server",
    "survey",
    "times",
]

if not TYPE_CHECKING:  # a type checker would take every name that does not exist for one of these

    def __getattr__(name: str) -> object:
        """The other subjects are imported when they are first used: a program that only sends jobs needs none."""
        from importlib import import_module

        if name in __all__:
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
