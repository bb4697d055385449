"""The format of log lines: on a console, for people, and as JSON, for machines.

A line is a dict: the event, its level, perhaps the name of its logger, and facts. Rendering never raises, whatever the
facts contain.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Hashable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, cast

from fennelq import clock
from fennelq.streams import clean, clean_lines

Line = dict[str, Any]
Render = Callable[[Line], str]

_BELOW: Final = ("stack", "traceback")
"""Facts of several lines: on a console they follow below the line."""
_RESERVED: Final = ("event", "level", "timestamp", "logger")
_PLAIN: Final = (str, int, float, bool, type(None))


def for_people(*, colors: bool) -> Render:
    """Renders lines for a console. Names, ids and errors come out of Redis and may contain control characters, which
    could control the terminal of an operator: they are escaped."""

    @cache
    def columns() -> Any:
        from structlog.dev import ConsoleRenderer, plain_traceback

        # `plain_traceback` only keeps older versions of structlog from warning: tracebacks never reach the renderer.
        return ConsoleRenderer(colors=colors, exception_formatter=plain_traceback)

    def render(line: Line) -> str:
        facts = {clean(name): _for_people(value) for name, value in line.items() if name not in _BELOW}
        stamped = {"timestamp": datetime.now().astimezone().strftime("%H:%M:%S"), **facts}
        below = [clean_lines(str(line[name])).strip("\n") for name in _BELOW if line.get(name)]
        return "\n".join([columns()(None, "", stamped), *below])

    return render


def for_machines(line: Line) -> str:
    """The line as JSON. It is safe on a terminal as well: every character outside ASCII is escaped."""
    head = {"timestamp": iso(datetime.now(UTC)), "level": line["level"], "event": line["event"]}
    facts = {name: value for name, value in line.items() if name not in head}
    try:
        return json.dumps({**head, **facts}, default=_for_machines)
    except Exception:  # a value that contains itself, keys that are not texts, a __repr__ that raises
        return json.dumps({**head, **{name: _plain(value) for name, value in facts.items()}})


def iso(moment: datetime) -> str:
    """A moment for machines; UTC ends with Z."""
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def named(event: object, level: str, logger: object, facts: Mapping[str, Any]) -> Line:
    """A line of the users' code. A fact that has the name of a part of the line gets another name."""
    head: Line = {"event": str(event), "level": level}
    if logger:
        head["logger"] = str(logger)
    return head | {f"{name}_" if name in _RESERVED else name: value for name, value in facts.items()}


def unfold_exception(line: Line) -> None:
    """`exc_info` becomes a traceback without local variables, because those include the arguments of a task."""
    error: object = line.pop("exc_info", None)
    if error is True:
        error = sys.exc_info()
    if isinstance(error, tuple):
        error = cast("tuple[object, ...]", error)[1]
    if isinstance(error, BaseException):
        line["traceback"] = "".join(traceback.format_exception(error))


class Seldom:
    """A rate limiter: lets each key pass once per `seconds` (a minute). It remembers at most `most` keys."""

    def __init__(self, seconds: float = 60.0, most: int = 1000) -> None:
        self._seconds, self._most = seconds, most
        self._last: dict[Hashable, float] = {}

    def __call__(self, key: Hashable) -> bool:
        """Whether this key may pass now."""
        now = clock.monotonic()
        if now - self._last.get(key, now - self._seconds) < self._seconds:
            return False
        # Insert it at the end of the dict, so that the first key is always the one that passed the longest time ago.
        self._last.pop(key, None)
        if len(self._last) >= self._most:
            del self._last[next(iter(self._last))]
        self._last[key] = now
        return True


def _for_people(value: object) -> object:
    if isinstance(value, str):
        # The message of an error may have several lines. Its traceback shows them unchanged.
        return clean(" ".join(value.split()) if "\n" in value else value)
    if isinstance(value, datetime):
        return _by_the_clock(value)
    if isinstance(value, _PLAIN):
        return value
    return clean(_shown(value))


def _by_the_clock(moment: datetime) -> str:
    """Local time, with the date when that is not today."""
    here = moment.astimezone()
    today = here.date() == datetime.now().astimezone().date()
    return here.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S")


def _for_machines(value: object) -> str:
    return iso(value) if isinstance(value, datetime) else str(value)


def _plain(value: object) -> object:
    return value if isinstance(value, _PLAIN) else _shown(value)


def _shown(value: object) -> str:
    try:
        return repr(value)
    except BaseException as error:  # repr() may be the user's code, and may even raise SystemExit
        return f"<{type(value).__name__}, whose repr() raises {type(error).__name__}>"
