"""Assembles a script from Lua files, by pasting their text when the script is loaded. A script contains only the files
that it needs, because the server keeps its source in memory. Code of the hot path is pasted in place, because a call of
a Lua function would cost time for every job.

    --@include now, outcome/dead    files that it needs, from `lua/lib` unless a folder is named; each is pasted once.
                                    Those from `lua/early` come first: they end a script that has nothing to do

A function that few calls need makes its own functions, so that the other calls do not:

      --@paste holder, replace      here these files are pasted, and those that they need and the file with the
                                    function does not include. A file that keeps something for the whole script,
                                    such as counts, has to be included there: otherwise each function has its own

A script that runs gates lists them in its header, and pastes their two parts into functions:

    --@gates place, expired         files of `lua/gates`, in the order in which they decide
      --@pass gates                 here the check of each gate is pasted: the code after `--@check` in its file
      --@paste gates                here the code before `--@check` is pasted, and the files that the gates need

The file that calls the leavings, which act when a run is over, lists them in its header (`lua/lib/run_over.lua`):

    --@leavings waiters, history    files of `lua/leaving`, in the order in which they act
    --@reads kept_at_least          fields of the record that this file needs besides those that the leavings need
      --@read ended                 here the fields are read, in one HMGET, and become locals
      --@leave ended                here the leavings that have a part `--@when ended` are called
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from importlib.resources import files
from typing import Final, NamedTuple

_DIRECTIVE: Final = re.compile(r"^--@(\w+) +(.+)$", re.MULTILINE)
_COMMENT: Final = re.compile(r"^\s*(--.*)?\n", re.MULTILINE)
_PART: Final = re.compile(r"^--@(check|when [^\n]*)\n", re.MULTILINE)
_MARKER: Final = re.compile(r"^( +)--@(pass|paste|read|leave) +(.+)\n", re.MULTILINE)
_CASES: Final = ("ended", "later", "again")
_KNOWN: Final = "how, record, job, what, more, keep"
"""The arguments of every part of a leaving, before its fields."""


class Leaving(NamedTuple):
    """One `--@when` block of a file in `lua/leaving`: its cases, the fields that it needs, and its code."""

    name: str
    cases: tuple[str, ...]
    fields: tuple[str, ...]
    """The fields of the record that it needs. It is not called when the record does not have the first of them."""
    code: str

    @property
    def function(self) -> str:
        """The name of its function in the script."""
        return f"{self.name}_{self.cases[0]}"

    def declared(self) -> str:
        """The declaration of its function."""
        return f"local function {self.function}({', '.join([_KNOWN, *self.fields])})\n{self.code}end\n"

    def called(self, cases: Sequence[str]) -> str:
        """A call where `how` is one of these cases. Errors are counted."""
        conditions = list(self.fields[:1])
        if not set(cases) <= set(self.cases):
            conditions.append(" or ".join(f"how == '{case}'" for case in self.cases if case in cases))
        call = f"not pcall({', '.join([self.function, _KNOWN, *self.fields])})"
        return f"if {' and '.join([*conditions, call])} then count('leaving_failed') end\n"


class LuaFile:
    """A Lua file, and the directives in its comments."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._text, *parts = _PART.split(text_of(f"{name}.lua"))
        self._parts = list(zip(parts[::2], map(without_comments, parts[1::2]), strict=True))
        self._directives = {kind: _words(words) for kind, words in _DIRECTIVE.findall(self._text)}

    def words(self, kind: str) -> tuple[str, ...]:
        """The words that a directive lists."""
        return self._directives.get(kind, ())

    def needed(self) -> Iterator[LuaFile]:
        """The files that have to be pasted before it."""
        for name in self.words("include"):
            yield _file_called(name)
        for leaving in self._called:
            yield lua_file(f"leaving/{leaving.name}")

    @property
    def pasted(self) -> list[LuaFile]:
        """The files that are pasted into its functions."""
        found: dict[str, LuaFile] = {}
        for _, kind, words in _MARKER.findall(self._text):
            for file in self._pasted_for(words) if kind == "paste" else ():
                found[file.name] = file
        return list(found.values())

    def _pasted_for(self, words: str) -> list[LuaFile]:
        """The files that are pasted in one place: these, and those that they need and this file does not include."""
        found: dict[str, LuaFile] = {}
        for needed in self.needed():
            _add(needed, found)
        before = set(found)
        gates = [f"gates/{gate}" for gate in self.words("gates")]
        for name in gates if words == "gates" else _words(words):
            _add(_file_called(name), found)
        return [file for file in found.values() if file.name not in before]

    @property
    def own_code(self) -> str:
        """What stands in this file, without comments."""
        return without_comments(self._text)

    @property
    def code(self) -> str:
        """Its code, with gates and leavings in their places and without comments, which would cost the server
        memory."""
        declared = "".join(leaving.declared() for leaving in self._called)
        return declared + without_comments(_MARKER.sub(self._pasted, self._text))

    @property
    def check(self) -> str:
        """The code with which a gate decides."""
        code = "".join(code for kind, code in self._parts if kind == "check")
        # A check with locals gets a block of its own: a Lua function may have 200 locals, and the names of two checks
        # must not collide.
        return f"do\n{code}end\n" if code.startswith("local ") else code

    @cached_property
    def leavings(self) -> list[Leaving]:
        """The parts of a leaving, one per `--@when`."""
        return [_leaving(self.name, kind, code) for kind, code in self._parts if kind != "check"]

    def _pasted(self, marker: re.Match[str]) -> str:
        indent, kind, words = marker.groups()
        if kind == "pass":
            return "".join(lua_file(f"gates/{gate}").check for gate in self.words(words))
        if kind == "paste":
            return "".join(file.code for file in self._pasted_for(words))
        cases = _words(words)
        if kind == "read":
            return self._reading(cases)
        return "".join(indent + leaving.called(cases) for leaving in self._acting(cases))

    def _reading(self, cases: Sequence[str]) -> str:
        met = [field for leaving in self._acting(cases) for field in leaving.fields]
        fields = list(dict.fromkeys([*self.words("reads"), *met]))
        if not fields:
            return ""
        letters = ", ".join(f"F.{field}" for field in fields)
        return f"  local {', '.join(fields)} = unpack(redis.call('HMGET', record, {letters}))\n"

    def _acting(self, cases: Sequence[str]) -> list[Leaving]:
        found = [leaving for name in self._order for leaving in lua_file(f"leaving/{name}").leavings]
        return [leaving for leaving in found if set(leaving.cases) & set(cases)]

    @cached_property
    def _called(self) -> list[Leaving]:
        cases = [_words(words) for _, kind, words in _MARKER.findall(self._text) if kind == "leave"]
        return [leaving for some in cases for leaving in self._acting(some)]

    @property
    def _order(self) -> tuple[str, ...]:
        """The leavings, as listed here or in a file that this one includes."""
        listed = [self, *(lua_file(f"lib/{name}") for name in self.words("include") if "/" not in name)]
        return next((file.words("leavings") for file in listed if file.words("leavings")), ())


def _file_called(name: str) -> LuaFile:
    """The file that a directive names, from `lua/lib` unless with its folder."""
    return lua_file(name if "/" in name else f"lib/{name}")


@cache
def lua_file(name: str) -> LuaFile:
    """The file of this name, with its folder and without `.lua`."""
    return LuaFile(name)


def with_includes(file: LuaFile) -> list[LuaFile]:
    """The files that this file needs, each once and in order, and then this file."""
    found: dict[str, LuaFile] = {}
    _add(file, found)
    return list(found.values())


def with_pasted(file: LuaFile) -> Iterator[LuaFile]:
    """The same files, and those that are pasted into functions of theirs."""
    for part in with_includes(file):
        yield part
        for pasted in part.pasted:
            yield from with_pasted(pasted)


def _add(file: LuaFile, found: dict[str, LuaFile]) -> None:
    for needed in file.needed():
        if needed.name not in found:
            _add(needed, found)
    found[file.name] = file


def _leaving(name: str, kind: str, code: str) -> Leaving:
    cases, _, fields = kind.removeprefix("when ").partition(":")
    for case in _words(cases):
        if case not in _CASES:
            raise LookupError(f"{name}.lua acts when a run is over {case!r}: known are {', '.join(_CASES)}")
    return Leaving(name.rpartition("/")[2], _words(cases), _words(fields), code)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def without_comments(text: str) -> str:
    """Code without its comments and empty lines."""
    return _COMMENT.sub("", text)


def text_of(path: str) -> str:
    """The text of a file below `lua/`."""
    return (files("fennelq.broker") / "lua" / path).read_text(encoding="utf-8")
