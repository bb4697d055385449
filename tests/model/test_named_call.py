"""Arguments by name: what people and functions change."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from fennelq.model.named_call import by_name, call_of, parts


def plain(a: int, b: int = 2, *, c: int = 3) -> None: ...
def rest(a: int, b: int, *more: int, c: int = 3, **others: int) -> None: ...
def strict(a: int, /, b: int) -> None: ...


def parameters(function: Callable[..., Any] | None) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values()) if function else []


@pytest.mark.parametrize(
    ("function", "raw", "named", "back"),
    [
        (plain, b"[[1],{}]", {"a": 1}, b"[[1],{}]"),
        (plain, b'[[1],{"c":4}]', {"a": 1, "c": 4}, b'[[1],{"c":4}]'),
        (plain, b'[[],{"b":4}]', {"b": 4}, b'[[],{"b":4}]'),
        (plain, b"[[1,2,7],{}]", {"a": 1, "b": 2, "2": 7}, b"[[1,2,7],{}]"),
        (plain, b'[[1],{"x":7}]', {"a": 1, "x": 7}, b'[[1],{"x":7}]'),
        (rest, b'[[1,2,3,4],{"d":5}]', {"a": 1, "b": 2, "more": [3, 4], "d": 5}, b'[[1,2,3,4],{"d":5}]'),
        (strict, b"[[1,2],{}]", {"a": 1, "b": 2}, b"[[1,2],{}]"),
        (strict, b'[[1],{"a":2}]', {"0": 1, "a": 2}, b'[[1],{"a":2}]'),
        (None, b'[[1,"x"],{"c":4}]', {"0": 1, "1": "x", "c": 4}, b'[[1,"x"],{"c":4}]'),
        (
            plain,
            b"[[1000000000000000000000000000000],{}]",
            {"a": 10**30},
            b"[[1000000000000000000000000000000],{}]",
        ),
    ],
)
def test_a_call_has_names_and_comes_back(
    function: Callable[..., Any] | None, raw: bytes, named: dict[str, Any], back: bytes
) -> None:
    assert by_name(raw, parameters(function)) == named
    assert call_of(named, parameters(function)) == back


def test_values_are_written_as_they_are_sent() -> None:
    at = datetime(2026, 11, 18, 9, tzinfo=UTC)
    assert call_of({"a": at, "b": b"\xff"}, parameters(plain)) == b'[["2026-11-18T09:00:00Z","_w=="],{}]'


@pytest.mark.parametrize("raw", [b"", b"{", b"7", b"[1]", b"[[],[]]", b"[{},[]]", b"[[],{},1]", b"\xff"])
def test_what_is_no_call_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parts(raw)


def test_a_value_that_cannot_be_sent_is_refused() -> None:
    with pytest.raises(ValueError, match="object"):
        call_of({"a": object()})
