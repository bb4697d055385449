"""Mutants run in children, and are judged by the tests that run what was changed."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fennelq.worker import rounds
from tests.mutation.children import Child, note
from tests.mutation.kept import Kept
from tests.mutation.modules import OTHERS, OWN, TESTS, Modules
from tests.mutation.mutants import Mutant
from tests.mutation.running import Asked, Judge, Judging, Verdict, failures
from tests.mutation.scripts import LUA, Scripts

FILE = "worker/rounds.py"
NOTHING = Mutant("lib/lines.lua", 1, "", "nothing", "")


@pytest.fixture
def modules() -> Iterator[Modules]:
    """With all that was changed put back at the end."""
    kind = Modules()
    kind.collected(["rounds"])
    before = rounds.pause_of.__code__
    yield kind
    rounds.pause_of.__code__ = before


def a_mutant(kind: Modules) -> Mutant:
    return next(one for one in kind.mutants_in("rounds") if one.function == "pause_of")


def test_a_mutant_takes_the_place_of_the_function_that_everyone_has_imported(modules: Modules) -> None:
    function, mutant = rounds.pause_of, a_mutant(modules)
    modules.put_in_place(mutant._replace(source=mutant.source.replace("return ", "return 1000 * ")))
    assert function(10, 3.0) == 3000.0


def test_a_module_whose_functions_are_not_found_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its mutants would be taken for ones that are noticed, because nothing can put them in place."""
    monkeypatch.setattr("gc.get_objects", list[object])
    with pytest.raises(LookupError, match=r"no function of .*rounds\.py was found"):
        Modules().collected(["rounds"])


def test_what_a_test_runs_of_a_mutated_file_is_noted(modules: Modules) -> None:
    ran: set[tuple[str, str]] = set()
    with modules.noting(ran):
        rounds.pause_of(10, 3.0)
    assert ran == {(FILE, "pause_of"), (FILE, "length_of"), (FILE, "_number_of_pages")}
    mutant = a_mutant(modules)
    assert modules.judges(mutant, OWN["rounds"][0], ran)
    assert not modules.judges(mutant, OWN["rounds"][0], [(FILE, "length_of")])
    assert not modules.judges(mutant, "worker/test_logs.py", ran)


def test_a_script_is_judged_by_the_tests_that_call_an_arrow_with_it() -> None:
    """Where all of a file is run; a block of it has to be run itself."""
    kind, mutant = Scripts(), NOTHING
    assert kind.judges(mutant, "broker/test_link.py", [("fetch", "")])
    assert not kind.judges(mutant, "broker/test_link.py", [("ring", "")])
    assert (kind.is_own(mutant, "broker/test_fetch.py"), kind.is_own(mutant, "broker/test_ring.py")) == (
        True,
        False,
    )


def test_a_change_in_a_block_is_judged_by_the_tests_that_run_the_block() -> None:
    kind, source = Scripts(), (LUA / "lib/stop_rates.lua").read_text()
    mutant = Mutant(
        "lib/stop_rates.lua", 1, "", "removed", source.replace("return known", "return nil, known")
    )
    assert kind.judges(mutant, "broker/test_finish.py", [("lib/stop_rates.lua", "0")])
    assert not kind.judges(mutant, "broker/test_finish.py", [("finish", ""), ("lib/lines.lua", "0")])


def test_a_child_returns_what_its_function_returns() -> None:
    assert Child(lambda: [1, "two"], patience=30).wait() == [1, "two"]


def test_a_mutant_that_no_test_judges_survives(request: pytest.FixtureRequest) -> None:
    assert list(failures(request.session, [], {})) == []


def test_of_a_child_that_dies_or_takes_too_long_there_is_its_last_note() -> None:
    def act(end: Callable[[], object], patience: float = 30) -> None:
        note("one", 30)
        note("two", patience)
        end()

    assert Child(lambda: act(lambda: os._exit(3)), patience=30).wait() == "two"
    assert Child(lambda: act(lambda: time.sleep(600), 0.2), patience=30).wait() == "two"


class Answer:
    """In the place of a child that has returned an answer."""

    def __init__(self, failed: str = "", problem: str = "assert 1 == 2", *, hangs_in: str = "") -> None:
        self._answer = hangs_in or {"failed": failed, "problem": problem}

    def answer(self) -> Any:
        return self._answer


def verdict(kind: Modules | Scripts, answer: Answer, items: list[pytest.Item], suspect: str = "") -> Any:
    """What becomes of a mutant after this answer."""
    judge = Judge(kind, [], [], Asked(1, math.inf, Kept("verdicts")))
    found = judge.verdict_of(Judging(NOTHING, items, suspect, cast("Child", answer)))
    return found[1:] if isinstance(found, Verdict) else ([item.nodeid for item in found[0]], found[1])


def two_tests() -> list[Any]:
    return [SimpleNamespace(nodeid=f"tests/test_it.py::test_{name}") for name in ("one", "two")]


def test_a_failure_that_may_come_from_a_busy_machine_has_to_come_twice() -> None:
    items = two_tests()
    first, second = (item.nodeid for item in items)
    timed = Answer(second, "TimeoutError: Timeout reading from socket")
    assert verdict(Scripts(), Answer(), items) == (False, "")
    assert verdict(Scripts(), Answer(first), items) == (True, first)
    assert verdict(Scripts(), timed, items) == ([second], second)
    assert verdict(Scripts(), timed, items[1:], second) == (True, second)
    assert verdict(Modules(), Answer(first), items) == ([first, second], first)
    assert verdict(Modules(), Answer(second), items, first) == ([second], second)
    assert verdict(Modules(), Answer(first), items, first) == (True, first)


def test_a_test_that_hangs_has_to_hang_twice() -> None:
    items = two_tests()
    second = items[1].nodeid
    assert verdict(Scripts(), Answer(hangs_in=second), items) == ([second], second)
    noticed, why = verdict(Scripts(), Answer(hangs_in=second), items[1:], second)
    assert (noticed, why) == (True, "it hangs, or its process dies")


@pytest.mark.parametrize("name", Modules().names())
def test_a_module_that_is_mutated_has_tests_of_its_own(name: str) -> None:
    assert all((TESTS / file).is_file() for file in (*OWN[name], *OTHERS[name]))
    assert Modules().targets([name]) == [str(Path(TESTS, file)) for file in (*OWN[name], *OTHERS[name])]
