"""Logs: console lines on a terminal, JSON elsewhere. fennelq never logs arguments and results.

Logging never raises: neither when stderr is closed, full, broken or blocked, nor because of a processor of the user's
own. A lost line is counted, and the count is logged when writing works again (see `fennelq.streams`).

In a process that has called `setup`, fennelq's own lines have its format and go to stderr. The lines of the users' code
go there as well, through the standard library or structlog, unless that code configures logging itself. In any other
process, and with `config="none"`, fennelq configures nothing: its lines go through structlog if the program has
configured structlog, and otherwise through the standard library.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, MutableMapping
from datetime import datetime
from functools import cache
from importlib import import_module
from typing import Any, Final, TextIO

from fennelq.imports import forget, when_imported
from fennelq.lines import Line, Render, Seldom, for_machines, for_people, iso, named, unfold_exception
from fennelq.streams import LogStream, clean, colours, is_terminal

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
DETAILS: Final = ("type", "message", "traceback")
"""How much of an error is logged, from the least to the most."""

_OF_EVERY_RECORD: Final = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
_LAST_RESORT: Final = logging.lastResort
_OURS: Final = object()
"""Stands for the logger of fennelq's own lines."""

Way = Callable[[str, str, str, dict[str, object]], None]
About = Callable[[], Mapping[str, object]]
Hide = Callable[[str, object], object]


def _about_nothing() -> Mapping[str, object]:
    return {}


def _as_it_is(_: str, value: object) -> object:
    return value


_least = 0
_detail = "traceback"
_about: About = _about_nothing
_hide: Hide = _as_it_is
_render: Render = for_machines
_seldom: Seldom | None = None
_stream = LogStream()
_structlog_before: Final[dict[str, Any]] = {}
_structlog_ours: Final[dict[str, Any]] = {}
"""The configuration of structlog before `setup`, and the one that `setup` has made."""


class Logger:
    """Writes lines for one part of fennelq: an event and facts about it. It never raises."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def info(self, event: str, **facts: object) -> None:
        """Log a normal event."""
        self._write("info", event, facts)

    def warning(self, event: str, **facts: object) -> None:
        """Log a fact that an operator should know."""
        self._write("warning", event, facts)

    def error(self, event: str, **facts: object) -> None:
        """Log that a job or a process has failed."""
        self._write("error", event, facts)

    def critical(self, event: str, **facts: object) -> None:
        """Log that the process cannot go on."""
        self._write("critical", event, facts)

    def _write(self, level: str, event: str, facts: dict[str, object]) -> None:
        if LEVELS[level] < _least:
            return
        try:
            _way(self._name, level, event, facts)
        except Exception:
            _stream.missed()


def get(name: str) -> Logger:
    """A logger for one part of fennelq."""
    return Logger(name)


def setup(
    fmt: str = "auto",
    level: str = "info",
    *,
    config: str = "fennelq",
    errors: str = "traceback",
    about: About = _about_nothing,
    stdlib: bool = True,
    at_once: bool = True,
) -> None:
    """Configure logging of this process. Only the worker and the command line call this, never the library.

    `about` is called for each line of the users' code; it returns facts to add, such as the job that the line is about.
    `stdlib=False` does not configure the standard library, for a process that will import code which may configure it.
    `at_once=False` imports structlog when the users' code does, or with the first line: for commands, which mostly
    write none. A worker that is out of file descriptors could not import it any more.
    """
    global _least, _detail, _about, _render, _seldom, _way
    _least, _detail, _about = LEVELS[level], errors, about
    console = fmt == "console" or (fmt == "auto" and is_terminal(sys.stderr))
    _seldom = Seldom() if console else None
    _render = for_people(colors=colours(sys.stderr)) if console else for_machines
    aim(sys.stderr)
    if config == "none":
        _way = _by_the_program
        _stand_back()
        return
    _way = _by_ourselves
    when_imported("structlog", _configure_structlog)
    if at_once:
        import_module("structlog")
    if stdlib:
        _configure_stdlib()
    else:
        # Until then, this shows warnings in fennelq's format, but only those that no handler takes.
        logging.lastResort = _Handler(logging.WARNING)


def hide(fact: Hide) -> None:
    """Call this function with the name and the value of each context variable, and log what it returns."""
    global _hide
    _hide = fact


def aim(stream: TextIO) -> None:
    """Write finished lines to this stream from now on. A process that forwards its lines passes an object that sends
    them."""
    _stream.aim(
        stream, lambda lines: _rendered({"event": "log_lines_lost", "level": "warning", "lines": lines})
    )


def relay(text: str) -> None:
    """Write lines that another process has finished."""
    _stream.write(text)


def missed() -> None:
    """Count a line that failed before it could be written."""
    _stream.missed()


def wanted(level: str) -> bool:
    """Whether lines of this level are written: check it before computing the content of a line."""
    return LEVELS[level] >= _least


def shows(detail: str) -> bool:
    """Whether lines about an error have this: its "type", its "message" or its "traceback"."""
    return DETAILS.index(detail) <= DETAILS.index(_detail)


def _rendered(line: Line) -> str:
    return _render(line) + "\n"


# fennelq's own lines


def _by_ourselves(_: str, level: str, event: str, facts: dict[str, object]) -> None:
    """Write a line in fennelq's format, however the users' code configures structlog."""
    import structlog

    line: Any = {"event": event, **facts}
    try:
        for processor in _processors():
            line = processor(_OURS, level, line)
    except structlog.DropEvent:
        return
    _stream.write(f"{line}\n")


def _by_the_program(name: str, level: str, event: str, facts: dict[str, object]) -> None:
    """Write a line with the configuration of the program that fennelq runs in."""
    facts = {key: iso(value) if isinstance(value, datetime) else value for key, value in facts.items()}
    if _is_structlog_configured():
        from structlog import get_logger

        getattr(get_logger(name), level)(event, **facts)
        return
    logger, number = logging.getLogger(name), LEVELS[level]
    if not logger.isEnabledFor(number):
        return
    below = facts.pop("traceback", None) or facts.pop("stack", None)
    text = " ".join([event, *(f"{key}={_as_word(value)}" for key, value in facts.items())])
    record = logger.makeRecord(name, number, "", 0, text, (), None)
    # Formatters of the standard library put this text below the line.
    record.exc_text = str(below).rstrip("\n") if below else None
    vars(record).update({key: value for key, value in facts.items() if key not in _OF_EVERY_RECORD})
    logger.handle(record)


def _is_structlog_configured() -> bool:
    """A program that has not imported structlog has not configured it."""
    is_configured = getattr(sys.modules.get("structlog"), "is_configured", None)
    return is_configured is not None and bool(is_configured())


_way: Way = _by_the_program


def _as_word(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return clean(text if text and not set(text) & set(" \t\r\n=\"'") else repr(text))


# The users' lines: structlog


def _line_of(logger: object, method: str, facts: MutableMapping[str, Any]) -> str:
    """structlog's last processor: returns the finished line. It does not raise, because that would fail the user's
    job."""
    try:
        if logger is _OURS:
            line = named(facts.pop("event"), method, "", facts)
            if _seldom is not None and _is_repeated(line, _seldom):
                del line["traceback"]
        else:
            line = named(facts.pop("event", ""), method, getattr(logger, "name", ""), {**_about(), **facts})
            unfold_exception(line)
        return _render(line)
    except Exception:
        from structlog import DropEvent

        _stream.missed()
        raise DropEvent from None


def _merge_context(logger: Any, method: str, facts: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the context variables, without the secrets among them: jobs carry them from the code that sent them."""
    from structlog.contextvars import merge_contextvars

    own = len(facts)
    merged = merge_contextvars(logger, method, facts)
    for name in [*merged][own:]:
        merged[name] = _hide(name, merged[name])
    return merged


@cache
def _processors() -> list[Any]:
    """Always the same list: by it a configuration of structlog is known to be fennelq's."""
    from structlog.processors import StackInfoRenderer

    return [_merge_context, StackInfoRenderer(), _line_of]


def _is_repeated(line: Line, seldom: Seldom) -> bool:
    """Whether to leave out a traceback: a console shows that of a failed job once a minute per task and place."""
    if "traceback" not in line or "job_id" not in line:
        return False
    return not seldom((line.get("task"), line.get("at"), line.get("error")))


class _Lines:
    """The logger to which structlog passes a finished line. structlog's own loggers write a line and its newline
    separately, under a lock, and a fork may copy this lock while it is locked."""

    def __init__(self, name: object = "", *_: object) -> None:
        self.name = name
        self.debug = self.info = self.warning = self.error = self.critical = self.msg

    def msg(self, line: str) -> None:
        """Write the line."""
        _stream.write(f"{line}\n")

    # The methods of the users' own loggers, which this configuration replaces as well.
    log = warn = err = fatal = exception = failure = msg


def _configure_structlog() -> None:
    """Configure structlog, unless the users' code has configured it: then that configuration stays."""
    import structlog  # it takes a quarter of the time in which a command starts, and most commands write no line

    now = structlog.get_config()
    if structlog.is_configured() and now["processors"] is not _processors():
        return
    _structlog_before.update({} if _structlog_before else now)
    _structlog_ours.update(
        processors=_processors(),
        wrapper_class=structlog.make_filtering_bound_logger(_least),
        logger_factory=_Lines,
        # Do not cache: code that logs at import, and configures structlog after that, must get its own configuration.
        cache_logger_on_first_use=False,
    )
    structlog.configure(**_structlog_ours)


def _unconfigure_structlog() -> None:
    """Undo `_configure_structlog`. The users' code may have replaced a part of the configuration: that part stays."""
    import structlog

    now = structlog.get_config()
    kept = {name: value for name, value in now.items() if value is not _structlog_ours.get(name)}
    if now["processors"] is _processors():
        structlog.reset_defaults()
    else:
        structlog.configure(**{**_structlog_before, **kept})


# The users' lines: the standard library


class _Handler(logging.Handler):
    """Writes the records of the standard library, unless a handler of the users' code already shows them."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record as a line."""
        try:
            if not _is_shown_by_another(record):
                _stream.write(_rendered(_line_of_record(record)))
        except BaseException:  # values of `extra` are the user's, and their repr() may raise SystemExit
            _stream.missed()


def _line_of_record(record: logging.LogRecord) -> Line:
    facts = {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}
    # asyncio reports tasks and futures when they are garbage-collected, which happens in the context of any job.
    about = _about_nothing() if record.name == "asyncio" else _about()
    try:
        event = record.getMessage()
    except Exception as error:
        event = str(record.msg)
        facts |= {
            "not_formatted": f"{type(error).__name__}: {error}",
            "at": f"{record.pathname}:{record.lineno}",
        }
    line = named(event, record.levelname.lower(), record.name, {**about, **facts})
    line["exc_info"] = record.exc_info
    unfold_exception(line)
    if record.exc_text and "traceback" not in line:
        line["traceback"] = record.exc_text
    if record.stack_info:
        line["stack"] = record.stack_info
    return line


def _is_shown_by_another(record: logging.LogRecord) -> bool:
    """Whether a handler of the users' code writes the record to stdout or stderr."""
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None:
        if any(_shows(handler, record) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def _shows(handler: logging.Handler, record: logging.LogRecord) -> bool:
    # Handlers of `rich` have a console with a file, and no stream.
    stream = getattr(handler, "stream", None) or getattr(getattr(handler, "console", None), "file", None)
    standard = (sys.stderr, sys.stdout, sys.__stderr__, sys.__stdout__)
    if stream is None or not any(stream is one for one in standard) or record.levelno < handler.level:
        return False
    # A filter of the user's own may count or change records: only its own handler may call it, once per record.
    own = any(type(one) is not logging.Filter for one in handler.filters)
    return own or bool(handler.filter(record))


def _configure_stdlib() -> None:
    """Add a handler to the root logger: so lines of every library are written, at the level of the worker's own."""
    logging.lastResort = _LAST_RESORT
    root = logging.getLogger()
    if not _handlers_of_ours(root):
        root.addHandler(_Handler())
    root.setLevel(_least)
    # Lines of level info that the library writes for programs, such as the server in use, are in `worker_started`.
    logging.getLogger("fennelq").setLevel(max(_least, logging.WARNING))


def _handlers_of_ours(root: logging.Logger) -> list[logging.Handler]:
    return [handler for handler in root.handlers if isinstance(handler, _Handler)]


def _stand_back() -> None:
    """Undo the configuration of an earlier `setup` in this process."""
    logging.lastResort = _LAST_RESORT
    forget("structlog")
    if _structlog_ours:
        _unconfigure_structlog()
    root = logging.getLogger()
    for handler in _handlers_of_ours(root):
        root.removeHandler(handler)
        root.setLevel(logging.WARNING)
        logging.getLogger("fennelq").setLevel(logging.NOTSET)
