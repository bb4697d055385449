"""Reads the annotations of a function, to find out which values can be sent to it.

A parameter without a type, or with `Any`, takes only JSON values: any other value would arrive as another type.
"""

from __future__ import annotations

import collections.abc
import inspect
import math
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin

import typing_extensions
from pydantic import GetCoreSchemaHandler, JsonValue, PlainSerializer, SecretBytes, SecretStr, TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import CoreSchema, PydanticCustomError, core_schema, from_json, to_json

from fennelq.errors import ConfigurationError

SENDABLE: Final = "JSON values, dataclasses, pydantic models, enums, bytes, dates, UUIDs and Decimals can be"
_WIDEST: Final = 200
_PLAIN: Final = frozenset(
    {int, str, float, bool, bytes, list, dict, tuple, set, frozenset, object, type(None), UnionType}
) | {collections.abc.Sequence, collections.abc.Mapping}
_OF_CODE: Final[tuple[Any, ...]] = (get_origin(Callable[[], None]), cast("Any", typing.Callable), type)
"""Types that pydantic checks, although it cannot write their values."""
_OF_DATA: Final = {"datetime", "decimal", "ipaddress", "pathlib", "uuid"}
"""Modules whose types are data."""

NOT_JSON: Final = "not_json"
"""The type of pydantic's error for a value that is not JSON."""


class _JsonOnly:
    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        checked = core_schema.no_info_after_validator_function(_checked, schema)
        return core_schema.json_or_python_schema(schema, checked)


_Json = Annotated[Any, _JsonOnly]
_LEAVES = (str, int, type(None))
_SIMPLE: Final = (str, int, float, bool, type(None), None, JsonValue, _Json)
_UNTYPED: dict[Any, Any] = {
    # pydantic writes their values as stars, and the task would receive those.
    SecretStr: Annotated[SecretStr, PlainSerializer(SecretStr.get_secret_value, when_used="json")],
    SecretBytes: Annotated[SecretBytes, PlainSerializer(SecretBytes.get_secret_value, when_used="json")],
    Any: _Json,
    object: _Json,
    list: Annotated[list[Any], _JsonOnly],
    dict: Annotated[dict[str, Any], _JsonOnly],
    tuple: tuple[_Json, ...],
    set: set[_Json],
    frozenset: frozenset[_Json],
}


def hints_of(task: str, function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations, resolved; raises ConfigurationError when one of them cannot be resolved."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception as error:
        raise ConfigurationError(
            f"{task}: an annotation cannot be resolved ({error}): its names must be known when the task is declared. "
            "Import them at run time, not only under TYPE_CHECKING, and define them above the task, "
            "at the top level of the module"
        ) from None


def sendable(hint: Any) -> Any:
    """The type, in which a JSON value replaces every `Any`, also inside containers."""
    origin, inside = get_origin(hint), get_args(hint)
    if not inside:
        return _UNTYPED.get(origin or hint, hint)
    if origin in (Union, UnionType):
        return Union[tuple(map(sendable, inside))]  # noqa: UP007 - its members are known only at run time
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return cast("Any", origin)[tuple(map(sendable, inside))]
    return hint


def not_data(hint: Any) -> Any | None:
    """The part of a type whose values cannot be sent, such as a plain class; None when all parts can be sent.

    Only parts that are not obviously data are compiled, so that an app with many tasks is imported fast. A model whose
    own annotations cannot be resolved yet counts as data.
    """
    if type(hint) is type and hint in _PLAIN:
        return None
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return None if not_data(inside[0]) is None or _compiles(hint) else inside[0]
    if origin in _OF_CODE or hint in _OF_CODE:
        return hint
    if origin is Literal or isinstance(hint, TypeVar):
        return None
    if hasattr(origin, "__get_pydantic_core_schema__"):
        return None if _compiles(hint) else hint  # only the type itself knows the meaning of its parameters
    for part in inside:
        if part is not Ellipsis and (found := not_data(part)) is not None:
            return found
    return None if _is_data_at_a_glance(origin or hint) or _compiles(hint) else hint


def _is_data_at_a_glance(kind: Any) -> bool:
    if not inspect.isclass(kind):
        return kind in (Any, None, Union, JsonValue)
    return (
        kind in _PLAIN
        or kind.__module__ in _OF_DATA
        or issubclass(kind, Enum)
        or hasattr(kind, "__get_pydantic_core_schema__")
        or is_dataclass(kind)
        or typing_extensions.is_typeddict(kind)
    )


def _compiles(hint: Any) -> bool:
    try:
        TypeAdapter(hint)
    except PydanticSchemaGenerationError:
        return False
    except Exception:
        return True  # unknown so far: a name may be defined later
    return True


def shown(annotation: Any) -> str:
    """A type as the user wrote it, cut to one line."""
    if annotation in (None, type(None)):
        return "None"
    format_annotation: Callable[[Any], str] = inspect.formatannotation
    text = format_annotation(annotation)
    return text if len(text) <= _WIDEST else f"{text[:_WIDEST]}…"


def is_simple(hint: Any) -> bool:
    """Whether every value of this type is one of JSON's own, or a list, tuple or dict of them. When such a value has
    been validated, pydantic finds no fault with it while it writes it."""
    if get_origin(hint) in (list, dict, tuple, Union, UnionType):
        return all(part is Ellipsis or is_simple(part) for part in get_args(hint))
    return any(hint is simple for simple in _SIMPLE)


def has_choice(hint: Any) -> bool:
    """Whether the type contains a union with more than one member besides None."""
    inside = get_args(hint)
    if get_origin(hint) in (Union, UnionType) and sum(part is not type(None) for part in inside) > 1:
        return True
    return any(map(has_choice, inside))


def _checked(value: Any) -> Any:
    """Returns the value if it is equal after a round trip through JSON, and raises otherwise."""
    if isinstance(value, _LEAVES):
        return value
    try:
        if from_json(to_json(value, inf_nan_mode="strings")) == value:
            return value
    except ValueError:
        pass
    raise PydanticCustomError(
        NOT_JSON,
        "JSON has no {stranger}: annotate the parameter with its type",
        {"stranger": _stranger(value) or "such value"},
    )


def _stranger(value: Any, room: int = 200) -> str | None:
    """The part of a value that JSON cannot hold; called only for a value that has one."""
    if isinstance(value, _LEAVES):
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else str(value)
    if not room:
        return "values nested so deeply"
    if isinstance(value, list):
        return _first_stranger(cast("Iterable[Any]", value), room)
    if isinstance(value, dict):
        members = cast("Mapping[Any, Any]", value)
        odd = next((key for key in members if not isinstance(key, str)), None)
        return (
            f"{type(odd).__name__} as a key" if odd is not None else _first_stranger(members.values(), room)
        )
    return type(value).__name__


def _first_stranger(values: Iterable[Any], room: int) -> str | None:
    return next((found for value in values if (found := _stranger(value, room - 1))), None)
