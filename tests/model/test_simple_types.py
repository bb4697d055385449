"""Values of JSON's own types are written without pydantic's check, which costs more than to write them."""

from __future__ import annotations

import math
import warnings
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Annotated, Any, Literal, Optional, cast

import pytest
from pydantic import JsonValue, PlainSerializer, TypeAdapter, ValidationError

from fennelq.model.codec import VALUES, dumped, tuple_of
from fennelq.model.hints import is_simple, sendable
from fennelq.model.result_codec import ResultCodec


class _Number(IntEnum):
    ONE = 1


class _Name(str):
    __slots__ = ()


@dataclass
class _Point:
    x: int


_SIMPLE: tuple[Any, ...] = (
    *(int, str, float, bool, None, type(None), JsonValue, sendable(Any)),
    *(int | None, int | str, Optional[dict[str, int]], list[int], list[JsonValue]),  # noqa: UP045
    *(dict[str, list[float]], tuple[int, ...], tuple[str, int]),
)
_OTHERS: tuple[Any, ...] = (
    *(bytes, datetime, Any, list, dict, Literal[1], _Point, _Number),
    *(list[_Point], int | _Point, dict[str, _Name], set[int]),
    Annotated[int, PlainSerializer(str, return_type=str)],
)


@pytest.mark.parametrize("hint", _SIMPLE, ids=str)
def test_types_of_json_are_simple(hint: Any) -> None:
    assert is_simple(hint)


@pytest.mark.parametrize("hint", _OTHERS, ids=str)
def test_other_types_are_not(hint: Any) -> None:
    assert not is_simple(hint)


_VALUES: tuple[tuple[Any, Any], ...] = (
    (int, _Number.ONE),
    (int, True),
    (int, 2**70),
    (str, _Name("anna")),
    (float, 1),
    (float, math.nan),
    (int | str, True),
    (int | str, _Number.ONE),
    (int | str, _Name("1")),
    (float | int, _Number.ONE),
    (bool | int, 1),
    (JsonValue, _Name("anna")),
    (JsonValue, {"a": [_Number.ONE, None, math.inf, {_Name("b"): "c"}]}),
    (list[int], [_Number.ONE, True]),
    (dict[str, list[float]], defaultdict(list, {_Name("a"): [1, math.inf]})),
    (tuple[int, ...], (1, _Number.ONE)),
    (Optional[dict[str, int]], OrderedDict([("a", 1)])),  # noqa: UP045
)


@pytest.mark.parametrize(("hint", "value"), _VALUES, ids=str)
@pytest.mark.parametrize("strict", [True, False])
def test_nothing_is_wrong_with_a_validated_value_of_a_simple_type(
    hint: Any, value: Any, strict: bool
) -> None:
    """With the check, pydantic would raise; without, it would warn, which fails this test."""
    adapter: TypeAdapter[Any] = TypeAdapter(cast("Any", tuple_of([hint])), config=VALUES)
    try:
        checked = adapter.validate_python((value,), strict=strict)
    except ValidationError:
        return  # such a value is never written
    assert is_simple(hint)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dumped(adapter, checked, checks=False) == dumped(adapter, checked)


@pytest.mark.parametrize("hint", [_Point, list[_Point]])
def test_a_value_that_has_changed_since_it_was_made_is_refused(hint: Any) -> None:
    point = _Point(1)
    point.x = "one"  # type: ignore[assignment] # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValueError, match="does not fit its annotation"):
        ResultCodec(hint).encode(point if hint is _Point else [point])
