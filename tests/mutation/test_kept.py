"""A verdict is kept as long as the mutant, and the test that noticed it, stay what they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation import kept
from tests.mutation.kept import Kept
from tests.mutation.mutants import Mutant

MUTANT = Mutant("fetch.lua", 3, "x = 1", "removed: x = 1", "do end")
TEST = "tests/broker/test_fetch.py::test_it[valkey]"
FILE = """
NUMBER = 1

@pytest.mark.both
def test_it():
    assert NUMBER

def test_another():
    assert True
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kept, "PROJECT", tmp_path)
    monkeypatch.setattr(kept, "_statements_of", vars(kept)["_statements_of"].__wrapped__)
    file = tmp_path / TEST.partition("::")[0]
    file.parent.mkdir(parents=True)
    file.write_text(FILE)
    return tmp_path


def test_a_noticed_mutant_is_known_to_the_next_run(project: Path) -> None:
    Kept("verdicts", project).notice(MUTANT, TEST)
    assert Kept("verdicts", project).has_noticed(MUTANT)
    assert not Kept("verdicts", project).has_noticed(MUTANT._replace(change="removed: y = 1"))


def test_a_mutant_of_a_changed_file_is_judged_again(project: Path) -> None:
    Kept("verdicts", project).notice(MUTANT, TEST)
    assert not Kept("verdicts", project).has_noticed(MUTANT._replace(source="do end do end"))


@pytest.mark.parametrize(
    ("before", "after", "stays"),
    [
        ("assert NUMBER", "assert not NUMBER", False),
        ("NUMBER = 1", "NUMBER = 2", False),
        ("mark.both", "mark.one", False),
        ("assert True", "assert False", True),
        ("def test_another", "def test_others", True),
    ],
)
def test_a_mutant_is_judged_again_when_the_test_that_noticed_it_has_changed(
    project: Path, before: str, after: str, *, stays: bool
) -> None:
    """Not when another test of its file has."""
    Kept("verdicts", project).notice(MUTANT, TEST)
    (project / TEST.partition("::")[0]).write_text(FILE.replace(before, after))
    assert Kept("verdicts", project).has_noticed(MUTANT) == stays


def test_what_was_kept_of_other_content_is_not_found(project: Path) -> None:
    Kept("tests", project).put("one", "this content", 1)
    assert Kept("tests", project).get("one", "this content") == 1
    assert Kept("tests", project).get("one", "other content") is None
