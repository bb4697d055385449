"""Runs tests against mutants, each in a child of its own, two at a time."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, Protocol

import pytest

from tests.mutation.mutants import Mutant

Key = tuple[str, str, str]


class Suite(NamedTuple):
    """Tests that judge a mutant."""

    timeout: int
    """The seconds that one test may take; the mutant of a test that takes longer was noticed."""
    targets: Sequence[str]
    plugins: Sequence[object] = ()


class Kind(Protocol):
    """What can be mutated: scripts or modules."""

    @property
    def equivalent(self) -> Mapping[Key, str]:
        """Mutants that no test can notice, and why."""
        ...

    @property
    def patience(self) -> float:
        """The seconds that a suite may take."""
        ...

    def names(self) -> list[str]:
        """What can be asked for."""
        ...

    def mutants_in(self, name: str) -> Iterable[Mutant]:
        """Every mutant that can be loaded at all."""
        ...

    def unchanged(self, names: Sequence[str]) -> Iterable[Mutant]:
        """Mutants that are none, for every test to pass that will judge these."""
        ...

    def key_of(self, mutant: Mutant) -> Key:
        """What stays the same when lines move."""
        ...

    def warm_up(self) -> None:
        """Import, once, what every child needs."""
        ...

    def suites_of(self, mutant: Mutant) -> Iterable[Suite]:
        """The tests that judge it, the quickest first."""
        ...

    def put_in_place(self, mutant: Mutant) -> None:
        """In a child: make the tests find the mutant."""
        ...


class Verdict(NamedTuple):
    mutant: Mutant
    noticed: bool
    how: str


def judged(kind: Kind, mutants: list[Mutant], at_once: int) -> Iterator[Verdict]:
    with ThreadPoolExecutor(at_once) as pool:
        for number, verdict in enumerate(pool.map(partial(verdict_on, kind), mutants), 1):
            if not verdict.noticed and kind.key_of(verdict.mutant) not in kind.equivalent:
                print(f"\nsurvived  {verdict.mutant.name}\n    {verdict.mutant.before}", flush=True)
            elif sys.stdout.isatty():
                print(f"\r{number}/{len(mutants)}", end="", flush=True)
            yield verdict


def verdict_on(kind: Kind, mutant: Mutant) -> Verdict:
    """Run its suites until one fails."""
    for suite in kind.suites_of(mutant):
        code = in_a_child(kind, mutant, suite)
        if code != 0:
            return Verdict(mutant, True, "it hangs" if code < 0 else "a test failed")
    return Verdict(mutant, False, "")


def in_a_child(kind: Kind, mutant: Mutant, suite: Suite) -> int:
    """What pytest returns; minus a signal's number when the child did not end in time."""
    child = os.fork()
    if child == 0:
        os._exit(tests_of(kind, mutant, suite))
    deadline = time.monotonic() + kind.patience
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGKILL


def tests_of(kind: Kind, mutant: Mutant, suite: Suite) -> int:
    output = os.open(os.environ.get("MUTATION_OUTPUT", os.devnull), os.O_RDWR | os.O_CREAT | os.O_APPEND)
    for stream in (0, 1, 2):
        os.dup2(output, stream)
    kind.put_in_place(mutant)
    one_kind_of_server()
    how = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", f"--timeout={suite.timeout}"]
    return int(pytest.main([*how, *suite.targets], plugins=list(suite.plugins)))


def one_kind_of_server() -> None:
    """Each server of the tests' own guardian; one kind is enough."""
    from tests.kit import server
    from tests.kit.guardian import guardian

    guardian.cache_clear()
    setattr(server, "installed_redis", lambda: None)  # noqa: B010 - it is a cached function


def report(kind: Kind, verdicts: list[Verdict], seconds: float, *, everything: bool) -> bool:
    """Prints what became of the mutants; true when no person has to look at anything."""
    keys = {kind.key_of(verdict.mutant) for verdict in verdicts}
    survivors = [verdict.mutant for verdict in verdicts if not verdict.noticed]
    unknown = [mutant for mutant in survivors if kind.key_of(mutant) not in kind.equivalent]
    stale = {kind.key_of(v.mutant) for v in verdicts if v.noticed} & kind.equivalent.keys()
    unfit = kind.equivalent.keys() - keys if everything else set[Key]()
    print(
        f"\n{len(verdicts)} mutants, {len(verdicts) - len(survivors)} noticed, "
        f"{len(survivors) - len(unknown)} equivalent, {len(unknown)} survived, {seconds:.0f} s"
    )
    for mutant in unknown:
        print(f"  {mutant.name}\n      {mutant.before}")
    for key in sorted(stale):
        print(f"  noticed after all, though listed as equivalent: {key}")
    for key in sorted(unfit):
        print(f"  fits no mutant any more: {key}")
    return not (unknown or stale or unfit)
