"""The Lua scripts that are mutated, and the tests that judge them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import redis

from fennelq.broker import lua_files, scripts
from fennelq.broker.verb import Verb, Word
from tests.kit.server import Server
from tests.mutation.blocks import OUTSIDE, block_at, logged, logging
from tests.mutation.equivalent import EQUIVALENT
from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.running import Key, Place

LUA: Final = Path(scripts.__file__).parent / "lua"
TESTS: Final = Path(__file__).parents[1] / "broker"
APART: Final = (
    "test_link.py",
    "test_demotion.py",
    "test_inbox.py",
    "test_trouble.py",
    "test_connection.py",
    "test_memory.py",
    "test_diagnosis.py",
)
"""Tests that have nothing to do with scripts, or that measure."""
TOGETHER: Final = {
    "ends_done": "ends",
    "ends_read": "ends",
    "ends_take": "ends",
    "index": "groups",
    "op_begin": "operations",
    "op_perform": "operations",
    "op_stop": "operations",
}
"""Arrows whose tests are in the file of another name."""

WAITED: Final = re.compile(r"time ?out|timed|within|deadline|not ready|connection|wait", re.IGNORECASE)
"""In the problem of a test that may have waited too long, or not long enough."""

_read = lua_files.text_of


class Scripts:
    """The arrows that have a test file, and every file that one of them is put together from."""

    equivalent = EQUIVALENT

    def names(self) -> list[str]:
        arrows = [arrow for arrow in all_arrows() if has_tests(arrow)]
        fragments = sorted(str(path.relative_to(LUA).with_suffix("")) for path in LUA.glob("*/*.lua"))
        return [*arrows, *(name for name in fragments if any(name in files_of(arrow) for arrow in arrows))]

    def mutants_in(self, name: str) -> list[Mutant]:
        file = f"{name}.lua"
        return mutants_of(file, _read(file))

    def can_be_loaded(self, mutant: Mutant) -> bool:
        return compiles(mutant)

    def key_of(self, mutant: Mutant) -> Key:
        return mutant.file, mutant.function, mutant.change

    def warm_up(self) -> None:
        for module in ("hypothesis.stateful", "tests.broker.desk"):
            import_module(module)

    def targets(self, names: Sequence[str]) -> list[str]:
        return [str(TESTS), *(f"--ignore={TESTS / name}" for name in APART)]

    def plugins(self) -> list[object]:
        return []

    def collected(self, names: Sequence[str]) -> None:
        pass

    @contextmanager
    def noting(self, ran: set[Place]) -> Generator[Callable[[], None]]:
        """Enters each script that is called, by its name, and each block of Lua that is run, by file and number."""

        def noted(words: Callable[[Verb[Any]], list[Word]]) -> Callable[[Verb[Any]], list[Word]]:
            def note(verb: Verb[Any]) -> list[Word]:
                ran.add((verb.script.name, ""))
                return words(verb)

            return note

        by_sha, by_source = noted(Verb[Any].by_sha), noted(Verb[Any].by_source)
        logs = _Logs(ran)
        _read_through(lambda path: logging(_read(path), path))
        with (
            patch.object(Verb, "by_sha", by_sha),
            patch.object(Verb, "by_source", by_source),
            patch.object(Server, "start", logs.started(Server.start)),
            patch.object(Server, "close", logs.closed(Server.close)),
        ):
            yield logs.read
        put_back()

    def judges(self, mutant: Mutant, file: str, ran: Collection[Place]) -> bool:
        block = block_of(mutant)
        if block != OUTSIDE:
            return (mutant.file, str(block)) in ran
        return any(mutant.file.removesuffix(".lua") in files_of(arrow) for arrow, number in ran if not number)

    def is_own(self, mutant: Mutant, file: str) -> bool:
        """Whether it is the test file of an arrow that contains the file."""
        name = mutant.file.removesuffix(".lua")
        arrows = [arrow for arrow in all_arrows() if test_file(arrow).name == Path(file).name]
        return any(name in files_of(arrow) for arrow in arrows)

    def is_certain(self, problem: str) -> bool:
        """A test has one connection, and waits only for replies of its server."""
        return WAITED.search(problem) is None

    def put_in_place(self, mutant: Mutant) -> None:
        put_in_place(mutant)


def has_tests(arrow: str) -> bool:
    return test_file(arrow).exists()


def test_file(arrow: str) -> Path:
    return TESTS / f"test_{TOGETHER.get(arrow, arrow)}.py"


@cache
def files_of(arrow: str) -> frozenset[str]:
    return frozenset(file.name for file in lua_files.with_pasted(lua_files.lua_file(arrow)))


def compiles(mutant: Mutant) -> bool:
    """Whether the loader and Redis accept every script with this file."""
    name = mutant.file.removesuffix(".lua")
    users = [arrow for arrow in all_arrows() if name in files_of(arrow)]
    put_in_place(mutant)
    try:
        for arrow in users:
            judge().script_load(scripts.script(arrow).source)
    except (redis.ResponseError, LookupError):
        return False
    finally:
        put_back()
    return True


def all_arrows() -> list[str]:
    return [path.stem for path in sorted(LUA.glob("*.lua"))]


def put_in_place(mutant: Mutant) -> None:
    _read_through(lambda path: mutant.source if path == mutant.file else _read(path))


def put_back() -> None:
    _read_through(_read)


def _read_through(read: Callable[[str], str]) -> None:
    setattr(lua_files, "text_of", read)  # noqa: B010 - to mypy it is a function
    lua_files.lua_file.cache_clear()
    scripts.script.cache_clear()


@cache
def block_of(mutant: Mutant) -> int:
    """The block in which something was changed."""
    before = _read(mutant.file)
    same = zip(before, mutant.source, count(), strict=False)
    return block_at(before, next((place for old, new, place in same if old != new), 0))


class _Logs:
    """The logs of all servers that are started."""

    def __init__(self, ran: set[Place]) -> None:
        self._ran = ran
        self._servers: dict[Server, int] = {}
        """Each with the length of what was read."""

    def started(self, start: Callable[..., Server]) -> Callable[..., Server]:
        def note(server: Server, **given: Any) -> Server:
            self._servers.setdefault(server, 0)
            return start(server, **given)

        return note

    def closed(self, close: Callable[[Server], None]) -> Callable[[Server], None]:
        def note(server: Server) -> None:
            self.read()
            self._servers.pop(server, None)
            close(server)

        return note

    def read(self) -> None:
        for server, length in self._servers.items():
            new = server.log_from(length)
            self._ran |= logged(new.decode(errors="replace"))
            self._servers[server] = length + len(new)


@cache
def judge() -> redis.Redis:
    """A server that checks whether a script can be compiled."""
    return Server("valkey").start().client()
