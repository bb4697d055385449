"""Loads the Lua files: one per arrow, with names for arguments, fields and keys.

A file opens with comments, among them

    --@args prefix, limit      its leading arguments; each becomes a local
    --@each lane, entry        the arguments after them, repeated per job: `first` is the index of the first of these,
                               and `stride` their number per job
    --@flags allow-oom         it may run over maxmemory
    --@flags no-writes         it only reads: a user of Redis without the right to write may call it

and the files that it includes (`lua_files.py`).

The loader replaces, in all files,

    F.place                    the letter of a field of a record, quoted (`fennelq/model/fields.py`)
    K.dead                     a key of the queue or of the app (`fennelq/broker/keys.py`)
    K[lane]                    the stream of a lane
    N.dead                     the name of a key without its prefix, quoted: `prefix .. N.dead` is the key
    LANES, PRIORITIES          the lanes in the order they are read, with and without the quarantine
    EVERY_LANE                 the lanes without the quarantine as one word of a call
    HIGH, NORMAL, LOW          the names of these lanes
    QUARANTINE, GROUP          the name of the lane for jobs that run alone, and of the group that reads all lanes

and puts the names of keys together from the argument `prefix`. On Redis Cluster a script may only touch keys of one
slot, which its call declares with one key. A script without `prefix` declares all keys that it names. An unknown name
is an error when the script is loaded, not when it runs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Final, NamedTuple

from fennelq.broker.keys import (
    APP_NAMES,
    GROUP,
    LANES,
    NORMAL,
    QUARANTINE,
    QUEUE_NAMES,
    STREAMS,
    AppKeys,
    QueueKeys,
)
from fennelq.broker.lua_files import lua_file, with_includes, with_pasted
from fennelq.model.fields import LETTERS

_FIELD: Final = re.compile(r"\bF\.(\w+)")
_KEY: Final = re.compile(r"\bK\.(\w+)")
_NAME: Final = re.compile(r"\bN\.(\w+)")
_LANE: Final = re.compile(r"\bK\[(\w+)\]")
_ADDING: Final = ("lib/entries", "lib/later")
"""The files with which a script adds entries or due times."""
_CONSTANTS: Final = {
    "LANES": "{" + ", ".join(f"'{lane}'" for lane in STREAMS) + "}",
    "PRIORITIES": "{" + ", ".join(f"'{lane}'" for lane in LANES.values()) + "}",
    "EVERY_LANE": f"'{' '.join(LANES.values())}'",
    "HIGH": f"'{LANES['high']}'",
    "NORMAL": f"'{NORMAL}'",
    "LOW": f"'{LANES['low']}'",
    "QUARANTINE": f"'{QUARANTINE}'",
    "GROUP": f"'{GROUP}'",
}
_FOR_THE_SLOT: Final = (QUEUE_NAMES["counters"],)
"""What a script declares that names no key, or puts their names together: the first key routes the call."""
_CONSTANT: Final = re.compile(rf"(?<!['\w])({'|'.join(_CONSTANTS)})(?!['\w])")


class Script(NamedTuple):
    """A script ready to be called."""

    name: str
    source: str
    sha: str
    keys: tuple[str, ...]
    """Their names in Redis, without the prefix of the queue or the app."""
    args: tuple[str, ...]
    each: tuple[str, ...]
    read_only: bool = False
    """Whether the server refuses every write of it."""

    def of(self, owner: QueueKeys | AppKeys) -> list[str]:
        """The keys that a call declares, of this queue or app."""
        return [owner[name] for name in self.keys]


@cache
def script(name: str, variant: str = "") -> Script:
    """The script of an arrow. `variant` is text put before everything else, such as the test kit's clock."""
    arrow = lua_file(name)
    parts = list(with_pasted(arrow))
    if any(part.name in _ADDING for part in parts) and "wake_sleepers()" not in arrow.own_code:
        raise LookupError(f"{name}.lua may add entries or due times, and does not end with wake_sleepers()")
    code = "".join(part.code for part in with_includes(arrow))
    # See `lua/lib/job_ended.lua`.
    code = code.replace("ONLY_MARKED", "false" if any(part.words("every") for part in parts) else "true")
    args, each = arrow.words("args"), arrow.words("each")
    keys, places = _keys(_names_of_keys(name, code), has_prefix="prefix" in args)
    lines = [_shebang(arrow.words("flags")), variant, *_locals(args, each), _replaced(name, code, places)]
    source = "\n".join(line for line in lines if line)
    sha, read_only = hashlib.sha1(source.encode()).hexdigest(), "no-writes" in arrow.words("flags")
    return Script(name, source, sha, keys, args, each, read_only)


def _names_of_keys(script: str, code: str) -> dict[str, str]:
    """The keys that a script names, and their names in Redis: all of a queue, or all of an app."""
    named = set(_KEY.findall(code))
    owner = QUEUE_NAMES if named <= QUEUE_NAMES.keys() or _LANE.search(code) else APP_NAMES
    for name in named - owner.keys():
        raise _unknown(script, "K", name, owner)
    return {name: key for name, key in owner.items() if name in named}


def _keys(names: Mapping[str, str], *, has_prefix: bool) -> tuple[tuple[str, ...], dict[str, str]]:
    """The keys that a call declares, and for each key the expression that a script has for it.

    A script of a queue declares one key, for the slot, and puts the names of all others together, like those of
    records: each word of a call costs the server about 0.2 us, and a fetch would have fifteen for keys, most of which
    it does not need."""
    if has_prefix and names.items() <= QUEUE_NAMES.items():
        return _FOR_THE_SLOT, {key: f"(prefix .. '{name}')" for key, name in names.items()}
    return tuple(names.values()) or _FOR_THE_SLOT, {
        key: f"KEYS[{place}]" for place, key in enumerate(names, 1)
    }


def _replaced(script: str, code: str, keys: Mapping[str, str]) -> str:
    """Letters for fields, expressions for keys, and the constants."""

    def letter(field: re.Match[str]) -> str:
        if field[1] not in LETTERS:
            raise _unknown(script, "F", field[1], LETTERS)
        return f"'{LETTERS[field[1]]}'"

    def quoted(name: re.Match[str]) -> str:
        if name[1] not in QUEUE_NAMES:
            raise _unknown(script, "N", name[1], QUEUE_NAMES)
        return f"'{QUEUE_NAMES[name[1]]}'"

    code = _NAME.sub(quoted, _FIELD.sub(letter, code))
    code = _LANE.sub(r"(prefix .. \1)", _KEY.sub(lambda key: keys[key[1]], code))
    return _CONSTANT.sub(lambda name: _CONSTANTS[name[1]], code)


def _unknown(script: str, table: str, name: str, known: Mapping[str, str]) -> Exception:
    nearest = get_close_matches(name, known, n=1)
    hint = f", did you mean {table}.{nearest[0]}?" if nearest else f": known are {', '.join(known)}"
    return LookupError(f"{script}.lua uses {table}.{name}, which is not declared{hint}")


def _shebang(flags: tuple[str, ...]) -> str:
    return f"#!lua flags={','.join(flags)}" if flags else "#!lua"


def _locals(args: tuple[str, ...], each: tuple[str, ...]) -> Iterator[str]:
    yield _assigned(args)
    if each:
        yield f"local first, stride = {len(args) + 1}, {len(each)}"


def _assigned(names: Sequence[str]) -> str:
    values = ", ".join(f"ARGV[{place}]" for place in range(1, len(names) + 1))
    return f"local {', '.join(names)} = {values}" if names else ""
