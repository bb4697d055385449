"""Log records of a cell, which its executor handles: one process writes the lines, with the handlers and the files.

A cell is a fork, so a handler that has a thread, a connection or a file to rotate would not work in it.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Mapping
from typing import Any, Final, cast

from fennelq import log
from fennelq.worker.cells.frames import Frame
from fennelq.worker.cells.pair import Pair

RECORD: Final = "record"
LINE: Final = "line"

_KEPT: Final = (
    "name",
    "levelno",
    "levelname",
    "pathname",
    "filename",
    "module",
    "lineno",
    "funcName",
    "created",
)
_LEFT_OUT: Final = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "_logger"}
"""What every record has, and structlog's own logger, which the executor puts back."""


# In the cell


def forward(pair: Pair) -> None:
    """Send what this process logs through the pair, from now on."""
    log.aim(cast("Any", _Lines(pair)))
    handler = _Forward(pair)
    root = logging.getLogger()
    # Records of a process that configures no logging: only warnings are shown, as in the executor.
    existing = [one for one in logging.root.manager.loggerDict.values() if isinstance(one, logging.Logger)]
    for logger in existing:
        logger.handlers.clear()
        if not logger.propagate:
            logger.addHandler(handler)
    root.handlers.clear()
    root.addHandler(handler)


class _Lines:
    """The stream of finished lines: those of structlog, as fennelq configures it, and fennelq's own."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    def write(self, text: str) -> int:
        """Send the line. A process that the task has forked writes to stderr itself."""
        if not self._pair.send({"kind": LINE, "text": _clean(text)}):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        """Does nothing: a line is sent at once."""


class _Forward(logging.Handler):
    """Sends records of the standard library."""

    def __init__(self, pair: Pair) -> None:
        super().__init__()
        self._pair = pair

    def emit(self, record: logging.LogRecord) -> None:
        """Send the record, with its message formatted."""
        try:
            head = _head_of(record)
        except BaseException:  # values of `extra` are the user's, and their repr() may raise SystemExit
            return
        if not self._pair.send(head) and logging.lastResort is not None:
            logging.lastResort.handle(record)


def _head_of(record: logging.LogRecord) -> Mapping[str, Any]:
    values = vars(record)
    head: dict[str, Any] = {name: _plain(values[name]) for name in _KEPT}
    extra = {str(name): _plain(value) for name, value in values.items() if name not in _LEFT_OUT}
    # structlog passes its facts as a dict, for a formatter in the handler.
    message: object = values["msg"]
    if not isinstance(message, dict):
        message = _formatted(record)
    head |= {"kind": RECORD, "msg": _plain(cast("object", message)), "extra": extra}
    if record.exc_info and record.exc_info[1] is not None:
        head["exc_text"] = _clean("".join(traceback.format_exception(record.exc_info[1])).rstrip("\n"))
    elif record.exc_text:
        head["exc_text"] = _clean(record.exc_text)
    if record.stack_info:
        head["stack_info"] = _clean(record.stack_info)
    return head


def _formatted(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:
        return f"{record.msg} (not formatted: {type(error).__name__}: {error})"


def _plain(value: object) -> Any:
    """The value as JSON, or as a text."""
    if isinstance(value, str):
        return _clean(value)
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else str(value)
    if isinstance(value, dict):
        items = cast("dict[object, object]", value).items()
        return {_clean(str(name)): one if one is None else _scalar(one) for name, one in items}
    return _clean(repr(value))


def _scalar(value: object) -> Any:
    return _plain(repr(cast("object", value)) if isinstance(value, dict) else value)


def _clean(text: str) -> str:
    """Without halves of surrogate pairs, which JSON in UTF-8 cannot have."""
    return text.encode("utf-8", "replace").decode()


# In the executor


def handle(frame: Frame) -> None:
    """Write what a cell has logged, in the context of its job. Never raises."""
    try:
        if frame.head["kind"] == LINE:
            log.relay(str(frame.head["text"]))
        else:
            _handle_record(frame.head)
    except Exception:
        log.missed()


def _handle_record(head: Mapping[str, Any]) -> None:
    facts = {name: value for name, value in head.items() if name not in ("kind", "extra")}
    record = logging.makeLogRecord({**facts, **head["extra"]})
    logger = logging.getLogger(record.name)
    if "_name" in head["extra"]:
        vars(record)["_logger"] = logger
    # Not `handle`: the cell has asked the level and the filters of the logger.
    logger.callHandlers(record)
