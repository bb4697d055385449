"""Templates. Everything in them is escaped, and characters that would deceive a reader are made visible."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from functools import cache, partial
from importlib.resources import files
from typing import Any, Final, cast

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from jinja2.runtime import Undefined
from markupsafe import Markup, escape

from fennelq import __version__
from fennelq.web import drawing, words
from fennelq.web.site import Remembered
from fennelq.web.visit import link

LONGEST: Final = 8_000
"""Characters of a long text, such as a traceback."""
LIVE: Final = "live_"
"""The blocks of a page that update themselves begin with this. Each has one element with `data-live`."""
ASSETS: Final = {
    "fennelq.css": "text/css; charset=utf-8",
    "live.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


def _shown(value: Any) -> Any:
    """What a template writes for a value, before it is escaped."""
    if isinstance(value, Markup | Undefined):
        return value
    if value is None:
        return words.DASH
    if isinstance(value, str):
        return words.visible(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return words.number(value)
    return value


def _time(value: datetime | None, kind: str = "at") -> Markup:
    """A moment, which the browser shows in local time and counts on: `at`, `ago`, `in`, or `for`."""
    if value is None:
        return Markup(words.DASH)
    template = '<time datetime="{}" data-{} title="{}">{}</time>'
    seconds = value.timestamp()
    return Markup(template).format(
        f"{seconds:.3f}" if kind == "" else value.isoformat(), kind, words.exact(value), words.moment(value)
    )


def _clock(value: datetime) -> Markup:
    """The hour and the minute of a moment, which the browser shows in local time."""
    return Markup('<time datetime="{}" data-clock title="{}">{:%H:%M}</time>').format(
        value.isoformat(), words.exact(value), value
    )


def _path(text: str) -> Markup:
    """The path of a drawing: it is longer than a text may be."""
    return escape(text)


def _num(value: float | None, kind: str = "") -> Markup:
    """A number, faint when it is zero or unknown. A function: macros would take half of the time of a long table."""
    kind = kind if value else "zero"
    return Markup(f'<span class="{kind}">{words.number(value)}</span>' if kind else words.number(value))


def _span(seconds: float | None, late: float = 60) -> Markup:
    """A duration, which stands out when it is longer than `late`."""
    if seconds is None:
        return Markup('<span class="zero">–</span>')
    shown = words.duration(seconds)
    return Markup(f'<span class="retry">{shown}</span>' if late and seconds > late else shown)


def _spark(line: str) -> Markup:
    """A small line."""
    kind, path = ("spark", line) if line else ("spark flat", "M0 18h90")
    return Markup('<svg class="{}" width="90" height="20" aria-hidden="true"><path d="{}"/></svg>').format(
        kind, path
    )


def _lines(text: str, most: int = LONGEST) -> Markup:
    return escape(words.lines(text, most))


def _long(text: str, most: int = LONGEST) -> Markup:
    return escape(words.visible(text, most))


def _again(remembered: Remembered) -> Markup:
    """The main part of a page that was rendered before: its texts are escaped already."""
    return Markup(remembered.main)


def _code(text: str, most: int = words.LONGEST) -> Markup:
    """A sentence in which the texts between backquotes are code."""
    parts = [escape(part) for part in words.visible(text, most).split("`")]
    if len(parts) % 2 == 0:  # a backquote without its counterpart is one
        parts[-2:] = [Markup("`").join(parts[-2:])]
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else part for place, part in enumerate(parts)
    )


_FILTERS: Final[Mapping[str, Any]] = {
    "number": words.number,
    "duration": words.duration,
    "size": words.size,
    "time": _time,
    "ago": partial(_time, kind="ago"),
    "in_time": partial(_time, kind="in"),
    "since": partial(_time, kind="for"),
    "clock": _clock,
    "path": _path,
    "cut": words.cut,
    "lines": _lines,
    "long": _long,
    "listed": words.listed,
    "capital": words.capital,
    "code": _code,
    "again": _again,
}
"""By the names that they have in templates."""


@cache
def environment() -> Environment:
    """The templates, with all that they may use."""
    made = Environment(
        loader=PackageLoader("fennelq.web"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        cache_size=-1,
    )
    cast("Any", made.filters).update(_FILTERS)
    names: dict[str, Any] = cast("Any", made.globals)
    names.update(
        num=_num,
        span=_span,
        spark=_spark,
        counted=words.counted,
        brief=words.brief,
        in_letters=words.in_letters,
        part=drawing.part,
        link=link,
        asset=asset,
    )
    names["m"] = made.get_template("macros.html").module
    return made


@cache
def asset_bytes(name: str) -> bytes:
    """The content of a static file."""
    return (files("fennelq.web") / "static" / name).read_bytes()


@cache
def asset(name: str) -> str:
    """The path of a static file. It changes with the content, so browsers may keep the file for ever."""
    return f"static/{hashlib.sha256(asset_bytes(name)).hexdigest()[:8]}/{name}"


def fragments(template: Template, values: Mapping[str, Any]) -> dict[str, str]:
    """The parts of a page that update themselves, by name."""
    context = template.new_context(dict(values))
    return {
        name.removeprefix(LIVE): "".join(render(context)).strip()
        for name, render in template.blocks.items()
        if name.startswith(LIVE)
    }


VERSION: Final = __version__
