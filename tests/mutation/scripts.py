"""The Lua scripts that are mutated, and the tests that judge them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final

import redis

from fennelq.broker import lua_files, scripts
from tests.kit.server import Server
from tests.mutation.equivalent import EQUIVALENT
from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.running import Key, Suite

LUA: Final = Path(scripts.__file__).parent / "lua"
TESTS: Final = Path(__file__).parents[1] / "broker"
APART: Final = (
    "test_link.py",
    "test_demotion.py",
    "test_inbox.py",
    "test_trouble.py",
    "test_connection.py",
)
"""Tests that have nothing to do with scripts."""

_read = lua_files.text_of


class Scripts:
    """The arrows that have a test file, and every file that one of them is put together from."""

    equivalent = EQUIVALENT
    patience = 120.0

    def names(self) -> list[str]:
        arrows = [arrow for arrow in all_arrows() if own_tests(arrow)]
        fragments = sorted(str(path.relative_to(LUA).with_suffix("")) for path in LUA.glob("*/*.lua"))
        return [*arrows, *(name for name in fragments if any(name in files_of(arrow) for arrow in arrows))]

    def mutants_in(self, name: str) -> Iterator[Mutant]:
        """The mutants of a script that the loader and Redis would accept at all."""
        file = f"{name}.lua"
        for mutant in mutants_of(file, _read(file)):
            if compiles(mutant):
                yield mutant

    def unchanged(self, names: Sequence[str]) -> Iterable[Mutant]:
        """One is enough: each is judged by all tests in the end."""
        return [Mutant(f"{name}.lua", 1, "", "nothing", _read(f"{name}.lua")) for name in names[:1]]

    def key_of(self, mutant: Mutant) -> Key:
        return mutant.file, mutant.function, mutant.change

    def warm_up(self) -> None:
        for module in ("hypothesis.stateful", "tests.broker.desk"):
            import_module(module)

    def suites_of(self, mutant: Mutant) -> Iterable[Suite]:
        """First the tests of the arrows that contain the file, then all the others."""
        name = mutant.file.removesuffix(".lua")
        own = own_tests(name) or [
            test for arrow in all_arrows() if name in files_of(arrow) for test in own_tests(arrow)
        ]
        ignored = [f"--ignore={TESTS / name}" for name in APART]
        return [Suite(30, targets) for targets in (own, [str(TESTS), *ignored]) if targets]

    def put_in_place(self, mutant: Mutant) -> None:
        put_in_place(mutant)


def own_tests(arrow: str) -> list[str]:
    path = TESTS / f"test_{arrow}.py"
    return [str(path)] if path.exists() else []


@cache
def files_of(arrow: str) -> frozenset[str]:
    return frozenset(file.name for file in lua_files.with_includes(lua_files.lua_file(arrow)))


def compiles(mutant: Mutant) -> bool:
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
    def read(path: str) -> str:
        return mutant.source if path == mutant.file else _read(path)

    lua_files.text_of = read
    lua_files.lua_file.cache_clear()
    scripts.script.cache_clear()


def put_back() -> None:
    lua_files.text_of = _read
    lua_files.lua_file.cache_clear()
    scripts.script.cache_clear()


@cache
def judge() -> redis.Redis:
    """A server that checks whether a script can be compiled."""
    return Server("valkey").start().client()
