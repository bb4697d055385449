"""Loads the Lua files: one per arrow, fragments included by name, keys and arguments named.

A file opens with comments, among them

    --@keys stats, sched       the queue's keys it declares; each becomes a local of its name (lanes do not)
    --@args prefix, limit      its leading arguments, each a local
    --@each lane, entry        what follows, repeated per job: `first` and `stride` tell where
    --@include now, keys       fragments of lua/lib, pasted in this order
    --@flags allow-oom         it may run over maxmemory
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from fennelq.broker.keys import STREAMS, AppKeys, QueueKeys

_DIRECTIVE = re.compile(r"^--@(\w+) +(.+)$", re.MULTILINE)


class Script(NamedTuple):
    """A script ready to be called."""

    name: str
    source: str
    sha: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    each: tuple[str, ...]

    def of(self, owner: QueueKeys | AppKeys) -> list[str]:
        """The keys it declares, of this queue or app."""
        return [owner[name] for name in self.keys]


@cache
def script(name: str, variant: str = "") -> Script:
    """The script of an arrow. `variant` is text put before everything else, such as the test kit's clock."""
    body = _read(f"{name}.lua")
    directives: dict[str, tuple[str, ...]] = {
        kind: tuple(word.strip() for word in words.split(",")) for kind, words in _DIRECTIVE.findall(body)
    }
    keys, args, each = (directives.get(kind, ()) for kind in ("keys", "args", "each"))
    parts = [_shebang(directives.get("flags", ())), variant, _locals(keys, args, each)]
    parts += [_read(f"lib/{fragment}.lua") for fragment in directives.get("include", ())]
    source = "\n".join(part for part in [*parts, body] if part)
    return Script(name, source, hashlib.sha1(source.encode()).hexdigest(), keys, args, each)


def _read(path: str) -> str:
    return (files("fennelq.broker") / "lua" / path).read_text(encoding="utf-8")


def _shebang(flags: tuple[str, ...]) -> str:
    return f"#!lua flags={','.join(flags)}" if flags else "#!lua"


def _locals(keys: tuple[str, ...], args: tuple[str, ...], each: tuple[str, ...]) -> str:
    named = ((place, key.replace(":", "_")) for place, key in enumerate(keys, 1) if key not in STREAMS)
    lines = [f"local {key} = KEYS[{place}]" for place, key in named]
    lines += [f"local {arg} = ARGV[{place}]" for place, arg in enumerate(args, 1)]
    if each:
        lines.append(f"local first, stride = {len(args) + 1}, {len(each)}")
    return "\n".join(lines)
