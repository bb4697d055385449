"""Logs: console lines on a terminal, JSON elsewhere. Arguments and results are never logged.

Logging never raises: neither to a stderr that is closed, full, broken or blocked, nor through processors of the users'
own. A line that is lost is counted, and the count is logged when writing works again (see `fennelq.streams`).
"""

from __future__ import annotations

import io
import logging
import sys
import traceback
from collections.abc import MutableMapping
from types import TracebackType
from typing import Any, Final

import structlog

from fennelq.streams import LogStream, clean, clean_lines, colours, is_terminal

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}

_least = 0
_stream = LogStream()


class Logger:
    """Writes lines for one part of fennelq: an event and facts about it. It never raises."""

    __slots__ = ("_inner",)

    def __init__(self, name: str) -> None:
        self._inner: Any = structlog.get_logger(name)

    def info(self, event: str, **facts: object) -> None:
        """The normal course."""
        try:
            self._inner.info(event, **facts)
        except Exception:
            _stream.missed()

    def warning(self, event: str, **facts: object) -> None:
        """What an operator should know."""
        try:
            self._inner.warning(event, **facts)
        except Exception:
            _stream.missed()

    def error(self, event: str, **facts: object) -> None:
        """A job or a process has failed."""
        try:
            self._inner.error(event, **facts)
        except Exception:
            _stream.missed()

    def critical(self, event: str, **facts: object) -> None:
        """It cannot go on like this."""
        try:
            self._inner.critical(event, **facts)
        except Exception:
            _stream.missed()


def get(name: str) -> Logger:
    """A logger for one part of fennelq."""
    return Logger(name)


def setup(fmt: str = "auto", level: str = "info") -> None:
    """Configure logging of this process. Only the worker and the command line call it, never the library."""
    global _least
    _least = LEVELS[level]
    console = fmt == "console" or (fmt == "auto" and is_terminal(sys.stderr))
    processors = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        *(_for_people() if console else _for_machines()),
    ]
    _stream.aim(sys.stderr, lambda lines: _worded(processors, "log_lines_lost", lines=lines))
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(_least),
        logger_factory=_Lines,
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=max(_least, logging.WARNING), handlers=[_Handler(_stream)])


def wanted(level: str) -> bool:
    """Whether lines of this level are written: ask before working out what a line would say."""
    return LEVELS[level] >= _least


def write(text: str) -> None:
    """Write a text of several lines, such as a traceback, to where the log goes."""
    _stream.write(clean_lines(text))


class _Lines:
    """What structlog calls with a finished line. Its own loggers write line and newline apart, under a lock that a
    forked child may inherit locked."""

    def __init__(self, *_: object) -> None:
        self.debug = self.info = self.warning = self.error = self.critical = self.msg

    def msg(self, line: str) -> None:
        """Write it."""
        _stream.write(line + "\n")

    # Names that the users' own loggers have, which are configured by this as well.
    log = warn = err = fatal = exception = failure = msg


class _Handler(logging.StreamHandler[LogStream]):
    """Writes what libraries log through the standard library. They may quote texts out of Redis, too."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, safe to be shown on a terminal."""
        return clean_lines(super().format(record))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 – the name is logging's
        """The standard handler would write a traceback to stderr, and raise if that has been closed."""
        _stream.write(f"a line of {record.name} cannot be formatted:\n{clean_lines(traceback.format_exc())}")


def _worded(processors: list[Any], event: str, **facts: object) -> str:
    line: Any = {"event": event, **facts}
    for processor in processors:
        line = processor(None, "warning", line)
    return f"{line}\n"


def _for_people() -> list[Any]:
    stamp = structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
    show = structlog.dev.ConsoleRenderer(colors=colours(sys.stderr), exception_formatter=_show_exception)
    return [stamp, _cleaned, show]


def _for_machines() -> list[Any]:
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    return [stamp, structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]


def _cleaned(_: object, __: str, facts: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Names, ids and errors come out of Redis: none of them may drive the terminal of an operator. JSON is safe by
    itself: it escapes whatever is not ASCII."""
    return {clean(name): _cleaned_value(name, value) for name, value in facts.items()}


def _cleaned_value(name: str, value: object) -> object:
    if isinstance(value, str):
        return clean_lines(value) if name in ("exception", "stack") else clean(value)
    if value is None or isinstance(value, (int, float)) or name == "exc_info":
        return value
    shown = repr(value)
    return value if shown.isprintable() else clean(shown)


def _show_exception(
    file: Any, exc_info: tuple[type[BaseException], BaseException, TracebackType | None]
) -> None:
    # The formatter that structlog prefers when `rich` is installed shows local variables: the arguments of a task.
    shown = io.StringIO()
    traceback.print_exception(*exc_info, file=shown)
    file.write("\n" + clean_lines(shown.getvalue()).rstrip("\n"))
