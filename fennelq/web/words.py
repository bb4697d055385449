"""Values in words: numbers, durations, sizes, moments. All of them return plain text, which templates escape."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from fennelq.redaction import is_array
from fennelq.streams import clean, clean_lines

DASH: Final = "–"
_SMALL: Final = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB")
HIDDEN: Final = '"[redacted]"'
"""A secret, as JSON."""
LONGEST: Final = 2_000
"""Characters of a text on a page, unless the page asks for more."""


def number(value: float | None) -> str:
    """`22,764`, `118.4`, `–`."""
    if value is None:
        return DASH
    if not isinstance(value, int) and not math.isfinite(value):
        return DASH
    if isinstance(value, int) or not value:
        return f"{int(value):,}"
    if value < 0.05:
        return "< 0.1"
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """`1 job`, `3 jobs`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def verb(count: int, one: str, many: str) -> str:
    """The form of a verb for so many things."""
    return one if count == 1 else many


def in_letters(count: int) -> str:
    """`three`, and `12` from eleven on."""
    return _SMALL[count] if 0 <= count < len(_SMALL) else f"{count:,}"


def capital(text: str) -> str:
    """The text with a capital letter at its beginning."""
    return text[:1].upper() + text[1:]


def listed(texts: Iterable[str], most: int = 5) -> str:
    """`a, b and 3 more`."""
    every = [*texts]
    if len(every) > most:
        return f"{', '.join(every[:most])} and {len(every) - most:,} more"
    return " and ".join(filter(None, (", ".join(every[:-1]), *every[-1:])))


def duration(seconds: float | None) -> str:
    """`3 ms`, `8.1 s`, `4 m 12 s`, `2 h 3 m`, `3 d 4 h`."""
    if seconds is None or not math.isfinite(seconds):
        return DASH
    if seconds < 0:
        seconds = 0.0
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.00995 or not seconds else f"{seconds * 1000:.1f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, name, below, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            first, rest = divmod(whole, size)
            return f"{first:,} {name} {rest // below} {small}" if rest // below else f"{first:,} {name}"
    return f"{whole} s"


def measured(seconds: float | None) -> tuple[str, str]:
    """A duration as a number and its unit: `212` and `ms`; `4` and `m 12 s`."""
    value, _, unit = duration(seconds).partition(" ")
    return value, unit


def size(count: float | None) -> str:
    """`214 MiB`."""
    if count is None or not math.isfinite(count):
        return DASH
    value, place = float(count), 0
    while value >= 999.5 and place < len(_SIZES) - 1:
        value, place = value / 1024, place + 1
    return f"{value:.0f} {_SIZES[place]}" if value >= 9.95 or not place else f"{value:.1f} {_SIZES[place]}"


def moment(value: datetime | None, now: datetime | None = None) -> str:
    """`13:49:12`, with the date when it is another day than today. In UTC: the browser shows the local time."""
    if value is None:
        return DASH
    value = value.astimezone(UTC)
    today = (now or datetime.now(UTC)).astimezone(UTC).date()
    if value.date() == today:
        return f"{value:%H:%M:%S}"
    return f"{value.day} {value:%b %H:%M}" if value.year == today.year else f"{value.day} {value:%b %Y %H:%M}"


def exact(value: datetime | None) -> str:
    """`2026-11-20 13:49:12.100 UTC`."""
    if value is None:
        return ""
    value = value.astimezone(UTC)
    return f"{value:%Y-%m-%d %H:%M:%S}.{value.microsecond // 1000:03} UTC"


def cut(text: str, most: int) -> str:
    """The text, or its beginning."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def visible(text: str, most: int = LONGEST) -> str:
    """The text on one line, in which control characters and those that change the direction of text are escaped."""
    if len(text) > most:
        return f"{clean(text[:most])}… ({len(text):,} characters)"
    return clean(text)


def lines(text: str, most: int) -> str:
    """The same for a text of several lines."""
    if len(text) > most:
        return f"{clean_lines(text[:most])}\n… ({len(text):,} characters)"
    return clean_lines(text)


def as_json(value: Any, indent: int | None = None) -> str:
    """A JSON value as text. Whole numbers keep all digits."""
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    except (ValueError, RecursionError):
        return "(cannot be shown)"


def brief(pairs: Iterable[tuple[str, str]], most: int = 80) -> list[tuple[str, str]]:
    """The beginning of the arguments of a call, for a row of a table: it shows no more."""
    shown, left = list[tuple[str, str]](), most
    for name, value in pairs:
        if left <= 0:
            return [*shown, ("", "…")]
        shown.append((cut(name, 40), value if value == HIDDEN else cut(value, max(8, left))))
        left -= len(name) + len(value) + 3
    return shown


def as_call(call: Any, names: Iterable[str] = ()) -> list[tuple[str, str]]:
    """The arguments of a call, `[[…],{…}]`, as pairs of a name and a JSON text. A positional argument without a known
    name has an empty one."""
    if not (is_array(call) and len(call) == 2):
        return [] if call is None else [("", as_json(call))]
    args: list[Any] = call[0]
    kwargs: dict[str, Any] = call[1]
    known = [*names]
    given: list[tuple[str, Any]] = [
        (known[place] if place < len(known) else "", one) for place, one in enumerate(args)
    ]
    return [(name, as_json(one)) for name, one in (*given, *kwargs.items())]
