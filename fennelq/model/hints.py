"""What the annotations of a function say about what can be sent to it.

Where there is no type, or `Any`, only JSON values are taken: anything else would arrive as something else.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, Final, Union, cast, get_args, get_origin

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema, from_json, to_json

from fennelq.errors import ConfigurationError

NOT_JSON: Final = "not_json"
"""The type of the error that a value which is not JSON ends in."""


class _JsonOnly:
    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        checked = core_schema.no_info_after_validator_function(_checked, schema)
        return core_schema.json_or_python_schema(schema, checked)


_Json = Annotated[Any, _JsonOnly]
_LEAVES = (str, int, type(None))
_UNTYPED: dict[Any, Any] = {
    Any: _Json,
    object: _Json,
    list: Annotated[list[Any], _JsonOnly],
    dict: Annotated[dict[str, Any], _JsonOnly],
    tuple: tuple[_Json, ...],
    set: set[_Json],
    frozenset: frozenset[_Json],
}


def hints_of(task: str, function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations, resolved; raises ConfigurationError when one cannot be."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception as error:
        raise ConfigurationError(
            f"{task}: an annotation cannot be resolved ({error}): its names must be the module's at run time, "
            "not imported under TYPE_CHECKING only, nor defined inside a function"
        ) from None


def sendable(hint: Any) -> Any:
    """The type, with every `Any` in it, and in the containers it names, made a JSON value."""
    origin, inside = get_origin(hint), get_args(hint)
    if not inside:
        return _UNTYPED.get(origin or hint, hint)
    if origin in (Union, UnionType):
        return Union[tuple(map(sendable, inside))]  # noqa: UP007 - its members are not written down here
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return cast("Any", origin)[tuple(map(sendable, inside))]
    return hint


def has_choice(hint: Any) -> bool:
    """Whether there is a union in the type, of more than one member and None."""
    inside = get_args(hint)
    if get_origin(hint) in (Union, UnionType) and sum(part is not type(None) for part in inside) > 1:
        return True
    return any(map(has_choice, inside))


def _checked(value: Any) -> Any:
    """The value, when it comes back from JSON as it is."""
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
    """What there is in a value that JSON has not; looked for only when there is something."""
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
