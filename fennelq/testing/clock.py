"""The clock of an app under test. Its scripts read `now.lua` of this folder in place of `lib/now.lua`.

No other code loads this file, so the clock of a production app cannot be moved: its scripts do not look for an offset.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Any

from fennelq.broker.keys import AppKeys, clock_key, keys_of
from fennelq.broker.lua_files import lua_file, without_comments
from fennelq.broker.scripts import Script
from fennelq.broker.verb import Command, Step, Verb


def moved(step: Step[Any], namespace: str) -> Step[Any]:
    """The same call, by the clock of the app under test."""
    if isinstance(step, Verb):
        return step._replace(script=_by_moved_clock(step.script))
    return now(namespace) if list(step.words) == ["TIME"] else step


def now(namespace: str) -> Command[int]:
    """The time of this clock in milliseconds."""
    code = f"{_text('now.lua')}return {{math.floor(now / 1000), now % 1000 * 1000}}"

    def read(reply: Any) -> int:
        return int(reply[0]) * 1000 + int(reply[1]) // 1000

    return Command(["EVAL", code, 1, clock_key(namespace)], read)


def pass_time(namespace: str, ms: int) -> Command[int]:
    """Let so many milliseconds pass at once."""
    keys = [clock_key(namespace), AppKeys(namespace)["cron:meta"]]
    return Command(["EVAL", _text("pass_time.lua"), len(keys), *keys, keys_of(namespace), ms], int)


@cache
def _by_moved_clock(script: Script) -> Script:
    source = script.source.replace(lua_file("lib/now").code, _text("now.lua"))
    return script._replace(source=source, sha=hashlib.sha1(source.encode()).hexdigest())


@cache
def _text(name: str) -> str:
    return without_comments((files("fennelq.testing") / name).read_text(encoding="utf-8"))
