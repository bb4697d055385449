"""Logs: console lines on a terminal, JSON elsewhere. Arguments and results are never logged."""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

import structlog

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}

_least = 0


def get(name: str) -> Any:
    """A logger for one part of fennelq."""
    return structlog.get_logger(name)


def setup(fmt: str = "auto", level: str = "info") -> None:
    """Configure logging of this process. Only the worker and the command line call it, never the library."""
    global _least
    _least = LEVELS[level]
    console = fmt == "console" or (fmt == "auto" and sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            *(_for_people() if console else _for_machines()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_least),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=max(_least, logging.WARNING), stream=sys.stderr)


def wanted(level: str) -> bool:
    """Whether lines of this level are written: ask before working out what a line would say."""
    return LEVELS[level] >= _least


def _for_people() -> list[Any]:
    stamp = structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
    return [stamp, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]


def _for_machines() -> list[Any]:
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    return [stamp, structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
