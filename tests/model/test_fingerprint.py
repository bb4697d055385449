"""Fingerprints: what belongs together has one, and what does not has two."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from types import TracebackType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fennelq.model.fingerprint import (
    fingerprint_of,
    fingerprint_of_text,
    is_fingerprint,
    masked,
    place_of_error,
)

FACTS = ("failed", "shop.tasks:charge", "ValueError", "shop.fixes:add")


def trace_of(function: Callable[[], object]) -> TracebackType:
    """The traceback of the error that it raises, from the function on."""
    trace: TracebackType | None = None
    try:
        function()
    except Exception as error:
        trace = error.__traceback__
    assert trace is not None
    assert trace.tb_next is not None
    return trace.tb_next


def raises() -> None:
    raise ValueError("no")


def calls_the_standard_library() -> None:
    json.loads("{")


def replaces(_: re.Match[str]) -> str:
    raise ValueError("no")


def calls_back() -> None:
    """The standard library calls code of the user's."""
    re.sub("a", replaces, "a")


class Shop:
    def charge(self) -> None:
        raises_here()


def raises_here() -> None:
    def inner() -> None:
        raise ValueError("no")

    inner()


def test_a_fingerprint_is_eight_hexadecimal_digits_that_never_change() -> None:
    assert fingerprint_of(*FACTS) == "8c76612b"
    assert fingerprint_of(*FACTS[:3]) == "f90318eb"


@pytest.mark.parametrize("place", range(len(FACTS)))
def test_each_fact_tells_failures_apart(place: int) -> None:
    other = [*FACTS]
    other[place] = "another"
    assert fingerprint_of(*other) != fingerprint_of(*FACTS)


@given(st.text(), st.text(), st.text(), st.text())
def test_any_texts_have_a_fingerprint(reason: str, task: str, error_type: str, place: str) -> None:
    assert is_fingerprint(fingerprint_of(reason, task, error_type, place))


@given(st.text(min_size=1))
def test_any_text_stands_for_a_fingerprint(text: str) -> None:
    assert is_fingerprint(fingerprint_of_text(text))


@pytest.mark.parametrize(("text", "made"), [("0000beef", "0000beef"), ("0000BEEF", "0000beef")])
def test_a_text_that_is_a_fingerprint_stands_for_itself(text: str, made: str) -> None:
    assert fingerprint_of_text(text) == made


@pytest.mark.parametrize(
    "text", ["", "0000bee", "0000beef0", "0000beeg", "0000BEEF", "0000beef\n", "٠٠٠٠٠٠٠٠"]
)
def test_what_is_no_fingerprint(text: str) -> None:
    assert not is_fingerprint(text)


# Where it was raised


@pytest.mark.parametrize(
    ("function", "place"),
    [
        (raises, "raises"),
        (calls_the_standard_library, "calls_the_standard_library"),
        (calls_back, "replaces"),
        (Shop().charge, "raises_here.<locals>.inner"),
    ],
)
def test_the_place_is_the_innermost_function_of_the_users_code(
    function: Callable[[], object], place: str
) -> None:
    assert place_of_error(trace_of(function)) == f"{__name__}:{place}"


def code_in(file: str, source: str, module: str, **names: object) -> dict[str, object]:
    """What a module of this name and file defines."""
    there: dict[str, object] = {"__name__": module, **names}
    exec(compile(source, file, "exec"), there)
    return there


LIBRARY = "/venv/lib/python3.11/site-packages/{}/core.py"


def test_code_of_installed_packages_is_not_the_users_own() -> None:
    fails = code_in(LIBRARY.format("http"), "def get():\n    raise OSError", "http.core")["get"]
    task = code_in("/app/tasks.py", "def task():\n    get()", "tasks", get=fails)["task"]
    assert place_of_error(trace_of(task)) == "tasks:task"  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_of_a_task_that_is_installed_the_code_of_its_own_package_counts() -> None:
    fails = code_in(LIBRARY.format("http"), "def get():\n    raise OSError", "http.core")["get"]
    package = LIBRARY.format("reports")
    source = "def task():\n    helper()\ndef helper():\n    get()"
    task = code_in(package, source, "reports.core", get=fails)["task"]
    assert place_of_error(trace_of(task)) == "reports.core:helper"  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# Messages


@pytest.mark.parametrize(
    ("one", "another"),
    [
        ("order 17 is gone", "order 4211 is gone"),
        ("took 1.5 s", "took 30 s"),
        ("no such user: 'anna'", "no such user: 'bert'"),
        ('no "a b"', 'no "c"'),
        ("unknown key `x`", "unknown key `y`"),
        ("job 5f2c1d9e-8a3b-4c1d-9e8f-0123456789ab", "job 00000000-0000-4000-8000-000000000000"),
        ("at 0x7f3b2c", "at 0xDEADbeef"),
        ("commit 9fceb02d0ae598e9", "commit 01fc02d0ae598e9"),
        ("not x, input_value={'a': [1]}, input_type=dict", "not x, input_value=None, input_type=dict"),
    ],
)
def test_messages_that_differ_only_in_values_are_masked_alike(one: str, another: str) -> None:
    assert masked(one) == masked(another)


@pytest.mark.parametrize(
    ("one", "another"),
    [
        ("no such user", "no such order"),
        ("can't open it", "can't close it"),
        ("the decade is over", "the facade is over"),
        ("user's name is missing, isn't it", "user's mail is missing, isn't it"),
    ],
)
def test_messages_that_differ_in_their_words_stay_apart(one: str, another: str) -> None:
    assert masked(one) != masked(another)


@pytest.mark.parametrize("hostile", ["'" * 4096, '"' * 4096, "a" * 4096, "0" * 4096, "input_value=" * 400])
def test_a_hostile_message_is_masked(hostile: str) -> None:
    assert len(masked(hostile)) <= len(hostile)
