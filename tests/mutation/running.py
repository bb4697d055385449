"""Runs tests against mutants, each in a child of its own.

The tests are collected once. A first child runs them and notes what each of them runs of the mutated files. Then a
mutant is judged by those that run what was changed: first those that have noticed other mutants of the same place, then
the tests of its own file, the quickest first. The first test that fails decides, but not if the failure may come from a
busy machine: then this test has to fail a second time, in another child.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import pytest

from tests.kit import waiting
from tests.mutation.children import Child, note
from tests.mutation.kept import Kept, state_of_test
from tests.mutation.mutants import Mutant

Key = tuple[str, str, str]
Place = tuple[str, str]
"""A file, and the qualified name of a function in it."""

TEST_TIMEOUT: Final = 25
PATIENCE: Final = 8.0
"""The seconds that one test may take, besides eight times what it takes without a mutation. A mutant is noticed when it
takes longer twice."""
_AGAIN: Final = 2.5
"""How much longer it may take the second time, because a test is slow on a busy machine too."""
_WAITS: Final = 5.0
"""The seconds after which a test that waits for an event fails; it has to fail twice. Elsewhere it waits longer."""
ALL_TESTS: Final = 1800.0
"""The seconds that all tests may take."""
_HANGS: Final = "it hangs, or its process dies"
_CANNOT_RUN: Final = "it cannot run"
PAGE: Final = 30
"""How many tests a child runs without any mutation. What it has found out is kept then."""
SLOW: Final = 2.0
"""Tests that take longer judge last, in seconds."""


class Kind(Protocol):
    """What can be mutated: scripts or modules."""

    @property
    def equivalent(self) -> Mapping[Key, str]:
        """Mutants that no test can notice, and why."""
        ...

    def names(self) -> list[str]:
        """What can be asked for."""
        ...

    def mutants_in(self, name: str) -> Iterable[Mutant]:
        """Every mutant of a script or a module."""
        ...

    def can_be_loaded(self, mutant: Mutant) -> bool:
        """Whether it can be judged at all."""
        ...

    def key_of(self, mutant: Mutant) -> Key:
        """What stays the same when lines move."""
        ...

    def targets(self, names: Sequence[str]) -> Sequence[str]:
        """What pytest collects for these, and its options."""
        ...

    def plugins(self) -> Sequence[object]: ...

    def warm_up(self) -> None:
        """Import, once, what every child needs."""
        ...

    def collected(self, names: Sequence[str]) -> None:
        """The tests have been collected, so everything of ours is imported. Called once."""
        ...

    def noting(self, ran: set[Place]) -> AbstractContextManager[Callable[[], None]]:
        """Meanwhile, enter in `ran` what is run of the files that can be mutated, at the latest when the function that
        this returns is called."""
        ...

    def judges(self, mutant: Mutant, file: str, ran: Collection[Place]) -> bool:
        """Whether a test of this file, which runs these places, judges the mutant."""
        ...

    def is_own(self, mutant: Mutant, file: str) -> bool:
        """Whether the tests of this file are about the file of the mutant."""
        ...

    def is_certain(self, problem: str) -> bool:
        """Whether this failure of a test cannot come from a busy machine."""
        ...

    def put_in_place(self, mutant: Mutant) -> None:
        """In a child: make the tests run the mutant."""
        ...


class Asked(NamedTuple):
    """How mutants are judged."""

    at_once: int
    until: float
    """The moment from which no child is started; what is left is judged by the next run."""
    verdicts: Kept


class Verdict(NamedTuple):
    mutant: Mutant
    noticed: bool
    by: str
    """The test that has failed, or what else has happened."""


class Judging(NamedTuple):
    """Tests that judge a mutant in a child."""

    mutant: Mutant
    judges: list[pytest.Item]
    suspect: str
    """The test that has failed already, and has to fail once more."""
    child: Child


class Judge:
    """A plugin for pytest: instead of running the tests, it lets them judge the mutants. It is not `ready` for this
    when a test fails without any mutation."""

    def __init__(self, kind: Kind, names: Sequence[str], mutants: Sequence[Mutant], asked: Asked) -> None:
        self.verdicts: list[Verdict] = []
        self.ready = False
        self.left = len(mutants)
        """How many are still to be judged."""
        self._kind = kind
        self._names = names
        self._mutants = mutants
        self._asked = asked
        self._ran: dict[str, Collection[Place]] = {}
        self._seconds: dict[str, float] = {}
        self._noticed = Counter[tuple[str, Place]]()
        """How many mutants of a place a test has noticed, and, with no function, of a file."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._kind.collected(self._names)
        waiting.PATIENCE = _WAITS
        gc.collect()
        gc.freeze()
        if failed := self._baseline(session):
            print(f"without any mutation a test fails: {failed}: nothing can be judged")
            return True
        self.ready = True
        for verdict in self._judged(session):
            self.verdicts.append(verdict)
            self.left -= 1
            if verdict.noticed and not verdict.by.startswith(_CANNOT_RUN):
                self._asked.verdicts.notice(verdict.mutant, verdict.by)
            _show(self._kind, verdict, self.left)
        return True

    def _baseline(self, session: pytest.Session) -> str:
        """Find out what each test runs, and how long it takes. Returns what has failed."""
        kept = Kept(f"tests of {type(self._kind).__name__.lower()}")
        known = {item.nodeid: kept.get(item.nodeid, state_of_test(item.nodeid)) for item in session.items}
        unknown = [item for item in session.items if known[item.nodeid] is None]
        if unknown:
            print(f"{len(unknown)} tests run without any mutation", flush=True)
        pages = [unknown[at : at + PAGE] for at in range(0, len(unknown), PAGE)]
        for page, found in self._pages_run(session, pages):
            if isinstance(found, str) or found["failed"]:
                return found if isinstance(found, str) else str(found["failed"])
            for item in page:
                known[item.nodeid] = found["tests"][item.nodeid]
                kept.put(item.nodeid, state_of_test(item.nodeid), known[item.nodeid])
        for test, (ran, seconds) in known.items():
            self._ran[test], self._seconds[test] = {(file, function) for file, function in ran}, seconds
        return ""

    def _pages_run(
        self, session: pytest.Session, pages: list[list[pytest.Item]]
    ) -> Iterator[tuple[list[pytest.Item], Any]]:
        """Each page of tests, with what was found out about them, as soon as it is known."""
        running = list[tuple[list[pytest.Item], Child]]()
        try:
            while pages or running:
                while pages and len(running) < self._asked.at_once:
                    page = pages.pop()
                    child = Child(partial(_unchanged, self._kind, session, page), patience=ALL_TESTS)
                    running.append((page, child))
                for one in [one for one in running if one[1].finished()]:
                    running.remove(one)
                    yield one[0], one[1].answer()
                time.sleep(0.005)
        finally:
            for _, child in running:
                child.abandon()

    def _judged(self, session: pytest.Session) -> Iterator[Verdict]:
        running = list[Judging]()
        try:
            yield from self._judged_at_once(session, running)
        finally:
            for one in running:
                one.child.abandon()

    def _judged_at_once(self, session: pytest.Session, running: list[Judging]) -> Iterator[Verdict]:
        waiting = list(reversed(self._mutants))
        while waiting or running:
            while waiting and len(running) < self._asked.at_once and time.monotonic() < self._asked.until:
                mutant = waiting.pop()
                if not self._kind.can_be_loaded(mutant):
                    self.left -= 1
                    self._asked.verdicts.notice(mutant, _CANNOT_RUN)
                    continue
                running.append(self.start(session, mutant, self._judges_of(session.items, mutant)))
            if not running:
                return
            for one in [one for one in running if one.child.finished()]:
                running.remove(one)
                verdict = self.verdict_of(one)
                if isinstance(verdict, Verdict):
                    self._noticed.update((verdict.by, place) for place in _places_of(one.mutant))
                    yield verdict
                else:
                    running.append(self.start(session, one.mutant, *verdict))
            time.sleep(0.005)

    def verdict_of(self, one: Judging) -> Verdict | tuple[list[pytest.Item], str]:
        """The verdict, or which tests have to judge again, because the first of them may fail on busy machines."""
        answer = one.child.answer()
        tests = [item.nodeid for item in one.judges]
        if isinstance(answer, str):  # it was ended in this test, or has died
            failed, certain, by = answer or next(iter(tests), ""), False, _HANGS
        elif answer["failed"] == _CANNOT_RUN:
            return Verdict(one.mutant, True, f"{_CANNOT_RUN}: {answer['problem']}")
        else:
            failed = by = answer["failed"]
            certain = self._kind.is_certain(answer["problem"])
        if not failed or failed == one.suspect or certain:
            return Verdict(one.mutant, bool(failed), by)
        return one.judges[tests.index(failed) :], failed

    def start(
        self, session: pytest.Session, mutant: Mutant, judges: list[pytest.Item], suspect: str = ""
    ) -> Judging:
        """Let these tests judge a mutant."""
        longer = _AGAIN if suspect else 1.0

        def act() -> dict[str, str]:
            try:
                self._kind.put_in_place(mutant)
            except ValueError as error:
                return {"failed": _CANNOT_RUN, "problem": f"{error}"}
            failed, problem = next(failures(session, judges, self._seconds, longer), ("", ""))
            return {"failed": failed, "problem": problem}

        return Judging(mutant, judges, suspect, Child(act, patience=longer * PATIENCE))

    def _judges_of(self, items: Iterable[pytest.Item], mutant: Mutant) -> list[pytest.Item]:
        judges = [
            item
            for item in items
            if self._kind.judges(mutant, _file_of(item), self._ran.get(item.nodeid, ()))
        ]

        def order(item: pytest.Item) -> tuple[float, bool, bool, float]:
            seconds = self._seconds.get(item.nodeid, 0.0)
            noticed = sum(self._noticed[item.nodeid, place] for place in _places_of(mutant))
            own = self._kind.is_own(mutant, _file_of(item))
            return -noticed / (seconds + 0.1), seconds > SLOW, not own, seconds

        return sorted(judges, key=order)


class _Reports:
    """A plugin for pytest that keeps what has failed."""

    def __init__(self) -> None:
        self.failed: list[tuple[str, str]] = []
        """Tests, and why they fail."""
        self.seconds = 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds += report.duration
        if report.failed:
            self.failed.append((report.nodeid, report.longreprtext))


def _unchanged(kind: Kind, session: pytest.Session, items: Sequence[pytest.Item]) -> dict[str, object]:
    """What each test runs, and how long it takes."""
    tests: dict[str, tuple[list[Place], float]] = {}
    current = set[Place]()
    reports = _reports_of(session)
    with kind.noting(current) as note:
        for item, following in zip(items, [*items[1:], None], strict=True):
            current.clear()
            before = reports.seconds
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            note()
            tests[item.nodeid] = sorted(current), reports.seconds - before
    failed = {test for test, _ in reports.failed}
    again = [item for item in items if item.nodeid in failed]
    # What fails only once depends on how busy the machine is: it judges nothing.
    tests |= {test: ([], tests[test][1]) for test in failed}
    return {
        "failed": " ".join({test: "" for item in again for test, _ in failures(session, [item], {})}),
        "tests": tests,
    }


def failures(
    session: pytest.Session, items: Sequence[pytest.Item], seconds: Mapping[str, float], longer: float = 1.0
) -> Iterator[tuple[str, str]]:
    """The tests that fail, one after the other, and why. None when no test judges: then the mutant survives. `seconds`:
    how long they take without any mutation. `longer`: how much more than usual they may take."""
    reports = _reports_of(session)
    for number, item in enumerate(items, start=1):
        following = items[number] if number < len(items) else None
        reports.failed.clear()
        note(item.nodeid, longer * (PATIENCE + 8 * seconds.get(item.nodeid, 0.0)))
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        yield from reports.failed


def _reports_of(session: pytest.Session) -> _Reports:
    reports = _Reports()
    session.config.pluginmanager.register(reports)
    return reports


def _places_of(mutant: Mutant) -> set[Place]:
    return {(mutant.file, mutant.function), (mutant.file, "")}


def _file_of(item: pytest.Item) -> str:
    """By its path inside of `tests`."""
    return item.nodeid.partition("::")[0].removeprefix("tests/")


def judged(kind: Kind, names: Sequence[str], mutants: Sequence[Mutant], asked: Asked) -> Judge:
    """Let the tests judge these mutants of `names`."""
    one_kind_of_server()
    kind.warm_up()
    judge = Judge(kind, names, mutants, asked)
    how = [
        "-q",
        "-q",
        # Children redirect their output, not that of the capture.
        "--capture=no",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        "--disable-warnings",
        f"--timeout={TEST_TIMEOUT}",
    ]
    pytest.main([*how, *kind.targets(names)], plugins=[*kind.plugins(), judge])
    return judge


def one_kind_of_server() -> None:
    """Each child has a guardian of its own, and one kind of server is enough."""
    from tests.kit import server
    from tests.kit.guardian import guardian

    guardian.cache_clear()
    setattr(server, "installed_redis", lambda: None)  # noqa: B010 - it is a cached function


def _show(kind: Kind, verdict: Verdict, left: int) -> None:
    if not verdict.noticed and kind.key_of(verdict.mutant) not in kind.equivalent:
        print(f"\nsurvived  {verdict.mutant.name}\n    {verdict.mutant.before}", flush=True)
    else:
        print(f"{left} left  {verdict.mutant.name}: {verdict.by or 'equivalent'}", flush=True)


def report(kind: Kind, verdicts: Sequence[Verdict], seconds: float, unfit: Collection[Key] = ()) -> bool:
    """Prints what became of the mutants, and which keys of equivalent ones are `unfit`, because there is no such mutant
    any more; true when no person has to look at anything."""
    survivors = [verdict.mutant for verdict in verdicts if not verdict.noticed]
    unknown = [mutant for mutant in survivors if kind.key_of(mutant) not in kind.equivalent]
    stale = {kind.key_of(v.mutant) for v in verdicts if v.noticed} & kind.equivalent.keys()
    print(
        f"\n{len(verdicts)} mutants, {len(verdicts) - len(survivors)} noticed, "
        f"{len(survivors) - len(unknown)} equivalent, {len(unknown)} survived, {seconds:.0f} s"
    )
    for mutant in unknown:
        print(f"  {mutant.name}\n      {mutant.before}")
    for verdict in verdicts:
        if verdict.by == _HANGS:
            print(f"  hangs, twice: {verdict.mutant.name}")
        if verdict.by.startswith(_CANNOT_RUN):
            print(f"  not judged: {verdict.mutant.name}: {verdict.by}")
    for key in sorted(stale):
        print(f"  noticed after all, though listed as equivalent: {key}")
    for key in sorted(unfit):
        print(f"  fits no mutant any more: {key}")
    return not (unknown or stale or unfit)
