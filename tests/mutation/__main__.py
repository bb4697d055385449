"""Runs the tests of the scripts against every mutant, two at a time."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import redis

from fennelq.broker import scripts
from tests.kit import server as kit_server
from tests.kit.guardian import guardian
from tests.kit.server import Server
from tests.mutation.equivalent import EQUIVALENT
from tests.mutation.mutants import Mutant, mutants_of

LUA: Final = Path(scripts.__file__).parent / "lua"
TESTS: Final = Path(__file__).parents[1] / "broker"
APART: Final = (
    "test_link.py",
    "test_demotion.py",
    "test_inbox.py",
    "test_trouble.py",
    "test_connection.py",
    "test_audit.py",
)
"""Tests that have nothing to do with scripts."""
PATIENCE: Final = 120.0
AT_ONCE: Final = 2

_read = scripts._read


class Verdict(NamedTuple):
    mutant: Mutant
    noticed: bool
    how: str


def main() -> int:
    asked = arguments()
    mutants = [mutant for file in asked.scripts or tested_scripts() for mutant in mutants_in(file)]
    mutants = [mutant for mutant in mutants if asked.only in mutant.name]
    if asked.list:
        print(*(mutant.name for mutant in mutants), f"{len(mutants)} mutants", sep="\n")
        return 0
    if (healthy := verdict_on(Mutant("forget.lua", 1, "", "nothing", _read("forget.lua")))).noticed:
        print(f"without any mutation {healthy.how}: nothing can be said")
        return 2
    began = time.monotonic()
    verdicts = list(judged(mutants))
    everything = not (asked.scripts or asked.only)
    return report(verdicts, time.monotonic() - began, everything=everything)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("scripts", nargs="*", help="fetch, lib/settle, …; default: all that are tested here")
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants whose name contains this")
    parser.add_argument("--list", action="store_true", help="show the mutants and run nothing")
    return parser.parse_args()


def tested_scripts() -> list[str]:
    """The arrows that have a test file, and every fragment that one of them includes."""
    arrows = [path.stem for path in sorted(LUA.glob("*.lua")) if own_tests(path.stem)]
    fragments = {path.stem for path in (LUA / "lib").glob("*.lua")}
    used = sorted(name for name in fragments if any(name in included(arrow) for arrow in arrows))
    return [*arrows, *(f"lib/{name}" for name in used)]


def own_tests(arrow: str) -> list[str]:
    path = TESTS / f"test_{arrow}.py"
    return [str(path)] if path.exists() else []


def included(arrow: str) -> list[str]:
    found = scripts._DIRECTIVE.findall(_read(f"{arrow}.lua"))
    return [word.strip() for kind, words in found if kind == "include" for word in words.split(",")]


def mutants_in(name: str) -> Iterator[Mutant]:
    """The mutants of a script that Redis would accept at all."""
    file = f"{name}.lua"
    for mutant in mutants_of(file, _read(file)):
        if compiles(mutant):
            yield mutant


def compiles(mutant: Mutant) -> bool:
    put_in_place(mutant)
    name = mutant.file.removesuffix(".lua")
    users = (
        [name] if "/" not in name else [a for a in all_arrows() if name.removeprefix("lib/") in included(a)]
    )
    try:
        for arrow in users:
            judge().script_load(scripts.script(arrow).source)
    except redis.ResponseError:
        return False
    finally:
        put_back()
    return True


def all_arrows() -> list[str]:
    return [path.stem for path in sorted(LUA.glob("*.lua"))]


def put_in_place(mutant: Mutant) -> None:
    def read(path: str) -> str:
        return mutant.source if path == mutant.file else _read(path)

    scripts._read = read
    scripts.script.cache_clear()


def put_back() -> None:
    scripts._read = _read
    scripts.script.cache_clear()


_judge: list[redis.Redis] = []


def judge() -> redis.Redis:
    """A server that says whether a script can be compiled."""
    if not _judge:
        _judge.append(Server("valkey").start().client())
    return _judge[0]


# Running


def judged(mutants: list[Mutant]) -> Iterator[Verdict]:
    for module in ("hypothesis.stateful", "tests.broker.desk"):
        import_module(module)  # once, and not in every child
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for number, verdict in enumerate(pool.map(verdict_on, mutants), 1):
            if not verdict.noticed and key_of(verdict.mutant) not in EQUIVALENT:
                print(f"\nsurvived  {verdict.mutant.name}\n    {verdict.mutant.before}", flush=True)
            elif sys.stdout.isatty():
                print(f"\r{number}/{len(mutants)}", end="", flush=True)
            yield verdict


def verdict_on(mutant: Mutant) -> Verdict:
    """Run the tests in a child: first the arrow's own, then all the others."""
    own = own_tests(mutant.file.removesuffix(".lua"))
    ignored = [f"--ignore={TESTS / name}" for name in APART]
    for targets in ([own] if own else []) + [[str(TESTS), *ignored]]:
        code = in_a_child(mutant, targets)
        if code != 0:
            return Verdict(mutant, True, "it hangs" if code < 0 else "a test failed")
    return Verdict(mutant, False, "")


def in_a_child(mutant: Mutant, targets: list[str]) -> int:
    """What pytest says; minus a signal's number when the child did not come back in time."""
    child = os.fork()
    if child == 0:
        os._exit(tests_of(mutant, targets))
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGKILL


def tests_of(mutant: Mutant, targets: list[str]) -> int:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    guardian.cache_clear()
    setattr(kit_server, "installed_redis", lambda: None)  # noqa: B010 - one kind of server is enough
    put_in_place(mutant)
    return int(
        pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--timeout=30", *targets])
    )


def report(verdicts: list[Verdict], seconds: float, *, everything: bool) -> int:
    survivors = [verdict.mutant for verdict in verdicts if not verdict.noticed]
    known = [mutant for mutant in survivors if key_of(mutant) in EQUIVALENT]
    unknown = [mutant for mutant in survivors if key_of(mutant) not in EQUIVALENT]
    stale = {key_of(v.mutant) for v in verdicts if v.noticed} & EQUIVALENT.keys()
    unfit = {key for key in EQUIVALENT if everything} - {key_of(verdict.mutant) for verdict in verdicts}
    print(
        f"\n{len(verdicts)} mutants, {len(verdicts) - len(survivors)} noticed, {len(known)} equivalent, ",
        end="",
    )
    print(f"{len(unknown)} survived, {seconds:.0f} s")
    for mutant in unknown:
        print(f"  {mutant.name}\n      {mutant.before}")
    for key in sorted(stale):
        print(f"  noticed after all, though said to be equivalent: {key}")
    for key in sorted(unfit):
        print(f"  fits no mutant any more: {key}")
    return 1 if unknown or stale or unfit else 0


def key_of(mutant: Mutant) -> tuple[str, str, str]:
    return mutant.file, mutant.before, mutant.change


if __name__ == "__main__":
    sys.exit(main())
