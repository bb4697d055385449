"""Questions to an executor: what is a message, and what is none."""

from __future__ import annotations

import pytest

from fennelq.model.questions import DRAIN, STACKS, Drain, Question, new_question
from fennelq.model.units import TEN_YEARS


def test_a_question_is_read_as_it_was_sent() -> None:
    for question in (new_question(STACKS), new_question(DRAIN, Drain(replace=True, grace=1.5).more)):
        assert Question.read(question.text) == question


def test_every_question_has_an_id_of_its_own() -> None:
    assert len({new_question(STACKS).request for _ in range(100)}) == 100


@pytest.mark.parametrize(
    "text",
    [
        "",
        "stacks",
        "stacks ",
        "stacks short",
        "stacks " + "a" * 65,
        "Stacks 0123456789abcdef",
        "stacks 0123456789ab:def",
        "stacks 0123456789abcdef\n",
        "drain 0123456789abcdef \x1b[2J",
        "drain 0123456789abcdef " + "1" * 101,
    ],
)
def test_another_text_is_no_question(text: str) -> None:
    assert Question.read(text) is None


@pytest.mark.parametrize(
    "drain", [Drain(), Drain(replace=True), Drain(grace=0.0), Drain(replace=True, grace=600.25)]
)
def test_how_to_drain_is_read_as_it_was_sent(drain: Drain) -> None:
    assert Drain.read(drain.more) == drain


def test_words_of_a_later_version_are_ignored() -> None:
    assert Drain.read("at once") == Drain()


@pytest.mark.parametrize(
    "grace",
    ["", "soon", "-1", "1.5", "1e9", "nan", "inf", "1_000", "\u0663", "316224000001", "9" * 20, "9" * 90],
)
def test_a_grace_period_that_makes_no_sense_is_ignored(grace: str) -> None:
    read = Drain.read(f"replace grace {grace}")
    assert read == Drain(replace=True, ignored=f"grace {grace}".strip())
    assert Drain.read("grace 316224000000").grace == TEN_YEARS
