"""A verdict is kept as long as the mutant, and the test that noticed it, stay what they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation import kept
from tests.mutation.kept import Kept
from tests.mutation.mutants import Mutant

MUTANT = Mutant("fetch.lua", 3, "x = 1", "removed: x = 1", "do end")
TEST = "tests/broker/test_fetch.py::test_it"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kept, "PROJECT", tmp_path)
    monkeypatch.setattr(kept, "text_of", kept.text_of.__wrapped__)
    file = tmp_path / TEST.partition("::")[0]
    file.parent.mkdir(parents=True)
    file.write_text("def test_it(): ...")
    return tmp_path


def test_a_noticed_mutant_is_known_to_the_next_run(project: Path) -> None:
    Kept("verdicts", project).notice(MUTANT, TEST)
    assert Kept("verdicts", project).has_noticed(MUTANT)
    assert not Kept("verdicts", project).has_noticed(MUTANT._replace(change="removed: y = 1"))


def test_a_mutant_of_a_changed_file_is_judged_again(project: Path) -> None:
    Kept("verdicts", project).notice(MUTANT, TEST)
    assert not Kept("verdicts", project).has_noticed(MUTANT._replace(source="do end do end"))


def test_a_mutant_is_judged_again_when_the_test_that_noticed_it_has_changed(project: Path) -> None:
    Kept("verdicts", project).notice(MUTANT, TEST)
    (project / TEST.partition("::")[0]).write_text("def test_it(): pass")
    assert not Kept("verdicts", project).has_noticed(MUTANT)
    Kept("verdicts", project).notice(MUTANT, TEST)
    assert Kept("verdicts", project).has_noticed(MUTANT)


def test_what_was_kept_of_other_content_is_not_found(project: Path) -> None:
    Kept("tests", project).put("one", "this content", 1)
    assert Kept("tests", project).get("one", "this content") == 1
    assert Kept("tests", project).get("one", "other content") is None
