"""Arguments and results, encoded by annotation.

A call travels as JSON: `[[positional…],{"keyword":…}]`. The *shape* of a call (how many positional arguments,
which keywords) is compiled once into one pydantic adapter, which then checks and writes it at `delay()` and
reads it in the worker, in one step each.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar, cast

import orjson
from pydantic import ConfigDict, JsonValue, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError
from typing_extensions import TypedDict

from fennelq.errors import ConfigurationError, InvalidArguments

R = TypeVar("R")

NO_ARGUMENTS = b"[[],{}]"

_JSON = ConfigDict(
    ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="strings", extra="forbid"
)
_SHAPES_KEPT = 256


class Shape(NamedTuple):
    """How a call is written: the number of positional arguments and the names of the others."""

    positional: int
    keywords: tuple[str, ...]


Call = tuple[tuple[Any, ...], dict[str, Any]]


class CallCodec:
    """Checks, writes and reads calls of one function."""

    def __init__(self, task: str, function: Callable[..., Any]) -> None:
        self._task = task
        self._signature = inspect.signature(function)
        self._types = _annotations(task, function)
        self._adapters: dict[Shape, TypeAdapter[Call]] = {}
        self._likely = Shape(0, ())

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The call as JSON; raises InvalidArguments, which names the parameter, when it does not fit."""
        if not args and not kwargs and self._likely == (0, ()) and self._likely in self._adapters:
            return NO_ARGUMENTS
        adapter = self._adapter(Shape(len(args), tuple(kwargs)))
        try:
            return adapter.dump_json(adapter.validate_python((args, kwargs), strict=True), warnings="error")
        except ValidationError as error:
            raise self._refusal(error, args) from None
        except (PydanticSerializationError, ValueError) as error:
            raise InvalidArguments(self._task, f"cannot be encoded: {error}") from None

    def decode(self, raw: bytes) -> Call:
        """The call that was written; raises InvalidArguments when it is not one of this function's."""
        if raw == NO_ARGUMENTS:
            self._adapter(Shape(0, ()))
            return (), {}
        adapter = self._adapters.get(self._likely)
        if adapter is not None:
            # Most tasks are always called alike: try the shape of the last call before looking for this
            # one's. A shape fits only exactly, so success is proof.
            try:
                return adapter.validate_json(raw)
            except ValidationError:
                pass
        return self._decode_any(raw)

    def _decode_any(self, raw: bytes) -> Call:
        shape = _shape_of(self._task, raw)
        adapter = self._adapter(shape)
        self._likely = shape
        try:
            return adapter.validate_json(raw)
        except ValidationError as error:
            raise self._refusal(error, ()) from None

    def _adapter(self, shape: Shape) -> TypeAdapter[Call]:
        adapter = self._adapters.get(shape)
        if adapter is None:
            if len(self._adapters) >= _SHAPES_KEPT:
                self._adapters.clear()
            adapter = self._adapters[shape] = self._compile(shape)
        return adapter

    def _compile(self, shape: Shape) -> TypeAdapter[Call]:
        try:
            self._signature.bind(*range(shape.positional), **dict.fromkeys(shape.keywords))
        except TypeError as error:
            raise InvalidArguments(self._task, f"{error}; it takes {self._signature}") from None
        positional = tuple(self._types[self._name_at(i)] for i in range(shape.positional))
        keywords = {name: self._types[self._keyword(name)] for name in shape.keywords}
        args_type = tuple[positional] if positional else tuple[()]
        kwargs_type = TypedDict(f"{self._task} keywords", keywords)  # type: ignore[operator]
        kwargs_type.__pydantic_config__ = _JSON  # type: ignore[attr-defined]
        return TypeAdapter(cast("type[Call]", tuple[args_type, kwargs_type]), config=_JSON)

    def _name_at(self, index: int) -> str:
        parameters = list(self._signature.parameters.values())
        for place, parameter in enumerate(parameters):
            if place == index or parameter.kind is parameter.VAR_POSITIONAL:
                return parameter.name
        raise InvalidArguments(self._task, f"takes no argument number {index + 1}")

    def _keyword(self, name: str) -> str:
        parameters = self._signature.parameters
        if name in parameters and parameters[name].kind is not inspect.Parameter.VAR_KEYWORD:
            return name
        return next(p.name for p in parameters.values() if p.kind is p.VAR_KEYWORD)

    def _refusal(self, error: ValidationError, args: tuple[Any, ...]) -> InvalidArguments:
        first = error.errors(include_url=False, include_context=False)[0]
        where = first["loc"]
        parameter = None
        if len(where) >= 2:
            parameter = (
                self._name_at(where[1]) if isinstance(where[1], int) and where[0] == 0 else str(where[1])
            )
        inside = "".join(f"[{part!r}]" for part in where[2:])
        got = type(first["input"]).__name__
        return InvalidArguments(
            self._task, f"{inside + ': ' if inside else ''}{first['msg']}, got {got}", parameter
        )


class ResultCodec(Generic[R]):
    """Writes and reads what a task returns."""

    def __init__(self, annotation: Any = JsonValue) -> None:
        self.is_none = annotation in (None, type(None))
        """True when the task is annotated `-> None`: it has no result to keep."""
        self._annotation = annotation
        self._cached: TypeAdapter[R] | None = None

    @classmethod
    def of(cls, task: str, function: Callable[..., Any]) -> ResultCodec[Any]:
        """The codec of a function's return annotation; unannotated means any JSON value."""
        return cls(_annotations(task, function).get("return", JsonValue))

    @property
    def _adapter(self) -> TypeAdapter[R]:
        if self._cached is None:
            self._cached = TypeAdapter(self._annotation, config=_config_for(self._annotation))
        return self._cached

    def encode(self, value: R) -> bytes:
        """The value as JSON; raises ValueError when it is not as annotated, or cannot be written."""
        if value is None and self.is_none:
            return b""
        try:
            return self._adapter.dump_json(self._adapter.validate_python(value), warnings="error")
        except (ValidationError, PydanticSerializationError) as error:
            raise ValueError(f"the result cannot be encoded as {self._annotation}: {error}") from None

    def decode(self, raw: bytes) -> R:
        """The value that was written; raises ValueError when it is not one."""
        if not raw and self.is_none:
            return cast("R", None)
        return self._adapter.validate_json(raw)


ANY_RESULT: ResultCodec[Any] = ResultCodec(JsonValue)


def _annotations(task: str, function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations of every parameter and the return; what is not annotated, or Any, must be a JSON value."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ConfigurationError(
            f"{task}: an annotation cannot be resolved ({error}): import the name at run time, "
            "not only under TYPE_CHECKING"
        ) from None
    names = [*inspect.signature(function).parameters, *(["return"] if "return" in hints else [])]
    return {name: JsonValue if (hint := hints.get(name, Any)) is Any else hint for name in names}


def _shape_of(task: str, raw: bytes) -> Shape:
    try:
        args, kwargs = orjson.loads(raw)
    except (ValueError, TypeError) as error:
        raise InvalidArguments(task, f"the arguments are not a call: {error}") from None
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise InvalidArguments(task, "the arguments are not a call: they read [[…],{…}]")
    return Shape(len(cast("list[Any]", args)), tuple(cast("dict[str, Any]", kwargs)))


def _config_for(annotation: Any) -> ConfigDict | None:
    """Models, dataclasses and typed dicts bring their own configuration and accept no other."""
    own = hasattr(annotation, "model_fields") or hasattr(annotation, "__dataclass_fields__")
    return None if own or hasattr(annotation, "__total__") else _JSON
