"""Arguments, encoded by annotation.

A call travels as JSON: `[[positional…],{"keyword":…}]`. The *shape* of a call (how many positional arguments,
which keywords) is compiled once into one pydantic adapter, which then checks and writes it at `delay()` and
reads it in the worker, in one step each.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from types import GenericAlias
from typing import Any, Literal, NamedTuple, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import from_json
from typing_extensions import TypedDict

from fennelq.errors import ConfigurationError, InvalidArguments, UnknownArgument
from fennelq.model import misfit
from fennelq.model.call_signature import as_written, named, without
from fennelq.model.hints import NOT_JSON, SENDABLE, has_choice, hints_of, is_simple, not_data, sendable, shown
from fennelq.model.secrets import has_stars

NO_ARGUMENTS = b"[[],{}]"

VALUES = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="strings")
"""How values are written that JSON has no form for."""
_CALL: ConfigDict = {**VALUES, "extra": "forbid"}
_SHAPES_KEPT = 256

_Kind = inspect.Parameter
_BY_PLACE = (_Kind.POSITIONAL_ONLY, _Kind.POSITIONAL_OR_KEYWORD)
_BY_NAME = (_Kind.POSITIONAL_OR_KEYWORD, _Kind.KEYWORD_ONLY)


class Shape(NamedTuple):
    """How a call is written: the number of positional arguments and the names of the others."""

    positional: int
    keywords: tuple[str, ...]


Call = tuple[tuple[Any, ...], dict[str, Any]]


class CallCodec:
    """Checks, writes and reads calls of one function."""

    def __init__(self, task: str, function: Callable[..., Any], injected: Collection[str] = ()) -> None:
        """`injected` are the parameters that a worker fills: no call has them."""
        self._task, self._injected = task, frozenset(injected)
        self._signature = without(inspect.signature(function), self._injected)
        self.signature = self._parameters = tuple(self._signature.parameters.values())
        """The parameters of a call, in their order."""
        hints = hints_of(task, function)
        self.hints = self._types = {p.name: sendable(hints.get(p.name, Any)) for p in self._parameters}
        """The types of the parameters that are sent."""
        self._has_choices = any(map(has_choice, self._types.values()))
        self._has_stars = any(map(has_stars, self._types.values()))
        self._is_simple = all(map(is_simple, self._types.values()))
        self._adapters: dict[Shape, TypeAdapter[Call]] = {}
        self._likely = Shape(0, ())

    def takes(self, name: str) -> bool:
        """Whether the function has a parameter of this name."""
        return name in self._types

    @property
    def parameters(self) -> list[str]:
        """The parameters that take one argument each."""
        return [one.name for one in self._parameters if one.kind in (*_BY_PLACE, *_BY_NAME)]

    def names(self, argument: str) -> bool:
        """Whether a call may have one argument of this name: a parameter, or one for `**kwargs`."""
        if argument in self.parameters:
            return True
        takes_any = any(one.kind is _Kind.VAR_KEYWORD for one in self._parameters)
        return takes_any and argument not in self._types and argument not in self._injected

    def places(self, count: int) -> tuple[list[str], str | None]:
        """The names of the first parameters, at most `count`, that take positional arguments; and the name of the one
        that takes all further ones."""
        fixed = [one.name for one in self._parameters if one.kind in _BY_PLACE]
        rest = next((one.name for one in self._parameters if one.kind is _Kind.VAR_POSITIONAL), None)
        return fixed[:count], rest

    def check_types(self) -> None:
        """Raises ConfigurationError when no value of a parameter's type could be sent."""
        for name, hint in self._types.items():
            if (culprit := not_data(hint)) is not None:
                raise ConfigurationError(
                    f"{self._task}, parameter {name!r} is annotated {shown(culprit)}, which cannot be sent: {SENDABLE}"
                )

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, those for `**kwargs` too, with the defaults of the others."""
        return named(self._signature, args, kwargs)

    def as_json(self, encoded: bytes) -> dict[str, Any]:
        """The arguments of an encoded call by name, in the form in which they are sent, and the defaults of the others
        in the form in which they would be sent."""
        args, kwargs = from_json(encoded)
        return named(self._sent, tuple(args), kwargs)

    @cached_property
    def _sent(self) -> inspect.Signature:
        """The parameters, with their defaults as they would be sent."""
        return self._signature.replace(parameters=[self._with_sent_default(one) for one in self._parameters])

    def _with_sent_default(self, parameter: inspect.Parameter) -> inspect.Parameter:
        if parameter.default is parameter.empty:
            return parameter
        try:
            adapter = _adapter_of(self._types[parameter.name])
            sent = from_json(dumped(adapter, adapter.validate_python((parameter.default,), strict=True)))
        except Exception:
            # A default need not fit its annotation (`text: str = None`), and validators of users may raise anything.
            # Then no call can send this value, so its form only has to be the same every time.
            return parameter
        return parameter.replace(default=sent[0])

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The call as JSON; raises InvalidArguments, which names the parameter, when it does not fit."""
        if not args and not kwargs and self._likely == (0, ()) and self._likely in self._adapters:
            return NO_ARGUMENTS
        shape = Shape(len(args), tuple(kwargs))
        adapter = self._adapter(shape)
        try:
            call = adapter.validator.validate_python((args, kwargs), strict=True)
        except ValidationError as error:
            raise self._refusal(error) from None
        return self._written(shape, adapter, call)

    def decode(self, raw: bytes) -> Call:
        """The call that `encode` wrote; raises InvalidArguments when it does not fit this function, and UnknownArgument
        when it has an argument that the function does not take."""
        if raw == NO_ARGUMENTS:
            self._adapter(Shape(0, ()))
            return (), {}
        adapter = self._adapters.get(self._likely)
        if adapter is not None:
            # Most tasks are always called with the same shape. So try the shape of the last call before finding out
            # that of this call. A shape accepts only calls of exactly this shape, so a success is correct.
            try:
                return cast("Call", adapter.validator.validate_json(raw))
            except Exception:
                pass
        return self._decode_any(raw)

    def _decode_any(self, raw: bytes) -> Call:
        shape = _shape_of(self._task, raw)
        try:
            adapter = self._adapter(shape)
        except InvalidArguments:
            self._refuse_unknown(shape)
            raise
        self._likely = shape
        try:
            return adapter.validate_json(raw)
        except ValidationError as error:
            raise self._refusal(error) from None
        except Exception as error:  # a validator of a user's model may raise anything
            raise InvalidArguments(self._task, f"cannot be read: {type(error).__name__}: {error}") from error

    def _refuse_unknown(self, shape: Shape) -> None:
        """Raises UnknownArgument when the call has more than this function takes."""
        kinds = {parameter.kind for parameter in self._parameters}
        if _Kind.VAR_KEYWORD not in kinds:
            named = {p.name for p in self._parameters if p.kind in _BY_NAME}
            for name in shape.keywords:
                if name not in named:
                    reason = f"the task has no such parameter; it takes {self._signature}"
                    raise UnknownArgument(self._task, reason, name)
        most = sum(p.kind in _BY_PLACE for p in self._parameters)
        if shape.positional > most and _Kind.VAR_POSITIONAL not in kinds:
            reason = f"too many positional arguments ({shape.positional}); it takes {self._signature}"
            raise UnknownArgument(self._task, reason)

    def _written(self, shape: Shape, adapter: TypeAdapter[Call], call: Call) -> bytes:
        try:
            raw = dumped(adapter, call, checks=not self._is_simple)
            # Read it back: models have hooks, aliases and settings of their own, and a call that a worker could not
            # read must not be sent.
            read = adapter.validator.validate_json(raw)
        except ValidationError as error:
            raise self._refusal(error, "is written as JSON that cannot be read back: ") from None
        except ValueError as error:
            culprit = next(
                (name for name, hint, value in self._named(shape, call) if not _is_writable(hint, value)),
                None,
            )
            raise InvalidArguments(
                self._task, f"cannot be encoded: {misfit.plainly(str(error))}", culprit
            ) from None
        if self._has_stars:
            self._refuse_stars(shape, call, read)
        if self._has_choices:
            self._refuse_confusion(shape, call, read)
        return raw

    def _refuse_stars(self, shape: Shape, call: Call, read: Call) -> None:
        """Raises InvalidArguments when a field of a value would arrive as stars."""
        for (name, hint, was), (_, _, came) in zip(
            self._named(shape, call), self._named(shape, read), strict=True
        ):
            if was != came and has_stars(hint):
                raise InvalidArguments(
                    self._task,
                    "pydantic writes its SecretStr as stars, and the task would receive those: annotate the field "
                    "Secret[str], from fennelq, or give the model a field_serializer for it",
                    name,
                )

    def _refuse_confusion(self, shape: Shape, call: Call, read: Call) -> None:
        """Raises InvalidArguments when a value would be read as another member of its union: JSON has no types."""
        for (name, hint, was), (_, _, came) in zip(
            self._named(shape, call), self._named(shape, read), strict=True
        ):
            if was != came and repr(was) != repr(came) and has_choice(hint):
                raise InvalidArguments(
                    self._task,
                    f"would arrive as {came!r:.100}: the types of its union look alike in JSON",
                    name,
                )

    def _named(self, shape: Shape, call: Call) -> list[tuple[str, Any, Any]]:
        """Parameter, type and value of each argument."""
        args, kwargs = call
        values = [*args, *kwargs.values()]
        return [
            (name, hint, value) for (name, hint), value in zip(self._types_of(shape), values, strict=True)
        ]

    def _adapter(self, shape: Shape) -> TypeAdapter[Call]:
        adapter = self._adapters.get(shape)
        if adapter is None:
            if len(self._adapters) >= _SHAPES_KEPT:
                self._adapters.clear()
            adapter = self._adapters[shape] = self._compile(shape)
        return adapter

    def _compile(self, shape: Shape) -> TypeAdapter[Call]:
        for name in shape.keywords:
            if name in self._injected:
                raise InvalidArguments(self._task, "the worker injects it: leave it out", name)
        try:
            self._signature.bind(*range(shape.positional), **dict.fromkeys(shape.keywords))
        except TypeError as error:
            raise InvalidArguments(self._task, f"{error}; it takes {self._takes()}") from None
        types = self._types_of(shape)
        positional, keywords = types[: shape.positional], types[shape.positional :]
        try:
            # The type is made at run time. The cast hides it from type checkers, which expect a declaration here.
            kwargs_type = cast("Any", TypedDict)(f"{self._task} keywords", dict(keywords))
            return _adapter_of(tuple_of(hint for _, hint in positional), kwargs_type)
        except Exception as error:
            raise self._no_data(types, error) from None

    def _takes(self) -> str:
        """The parameters, for messages."""
        injected = f"; the worker injects {', '.join(sorted(self._injected))}" if self._injected else ""
        return as_written(self._signature) + injected

    def _no_data(self, types: list[tuple[str, Any]], error: Exception) -> InvalidArguments:
        for name, hint in types:
            if (culprit := not_data(hint)) is not None:
                reason = f"its type is not one of data: {shown(culprit)} cannot be sent: {SENDABLE}"
                return InvalidArguments(self._task, reason, name)
        culprit = next((name for name, hint in types if not _is_data(hint)), None)
        return InvalidArguments(self._task, f"its type cannot be used: {misfit.plainly(str(error))}", culprit)

    def _types_of(self, shape: Shape) -> list[tuple[str, Any]]:
        """The name and the type of each argument."""
        places = [self._name_at(index) for index in range(shape.positional)]
        return [
            *((name, self._types[name]) for name in places),
            *((name, self._types[self._keyword(name)]) for name in shape.keywords),
        ]

    def _name_at(self, index: int) -> str:
        for place, parameter in enumerate(self._parameters):
            if place == index or parameter.kind is parameter.VAR_POSITIONAL:
                return parameter.name
        raise InvalidArguments(self._task, f"takes no argument number {index + 1}")

    def _keyword(self, name: str) -> str:
        parameter = self._signature.parameters.get(name)
        if parameter is not None and parameter.kind in _BY_NAME:
            return name
        return next(p.name for p in self._parameters if p.kind is p.VAR_KEYWORD)

    def _refusal(self, error: ValidationError, what: str = "") -> InvalidArguments:
        first = error.errors(include_url=False, include_context=False)[0]
        where = first["loc"]
        parameter = None
        if len(where) >= 2:
            parameter = (
                self._name_at(where[1]) if isinstance(where[1], int) and where[0] == 0 else str(where[1])
            )
        # The place in the value. A part with a bracket is not a place: it is pydantic's name for a member of a union.
        inside = "".join(f"[{part!r}]" for part in where[2:] if "[" not in str(part))
        got = "" if first["type"] == NOT_JSON else f", got {type(first['input']).__name__}"
        return InvalidArguments(
            self._task, f"{what}{inside + ': ' if inside else ''}{first['msg']}{got}", parameter
        )


class CallArguments(NamedTuple):
    """The arguments of one call, from which its key is computed."""

    codec: CallCodec
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    encoded: bytes

    def by_name(self) -> Mapping[str, Any]:
        """The values that the caller has passed, and the defaults of the others."""
        return self.codec.named(self.args, self.kwargs)

    def as_json(self) -> Mapping[str, Any]:
        """The same, in the form in which they are sent."""
        return self.codec.as_json(self.encoded)


def _shape_of(task: str, raw: bytes) -> Shape:
    try:
        args, kwargs = from_json(raw)
    except (ValueError, TypeError) as error:
        raise InvalidArguments(task, f"the arguments are not a call: {error}") from None
    if (type(args), type(kwargs)) != (list, dict):
        raise InvalidArguments(task, "the arguments are not a call, which has the form [[…],{…}]")
    return Shape(len(args), tuple(kwargs))


def _adapter_of(*types: Any) -> TypeAdapter[Any]:
    return TypeAdapter(cast("Any", tuple_of(types)), config=_CALL)


def tuple_of(types: Iterable[Any]) -> GenericAlias:
    """The type of a tuple of values of these types."""
    return GenericAlias(tuple, tuple(types))


def dumped(adapter: TypeAdapter[Any], value: Any, *, checks: bool = True) -> bytes:
    """The value as JSON; raises when a part of it is not of its type. `checks=False` is for a validated value of a type
    that `is_simple`, of which no part can be wrong."""
    # In the form in which it is read: by aliases, and without computed fields of models. The method of the adapter
    # would take longer, because it passes fifteen arguments on. So does the word "error": pydantic first tries to read
    # it as a bool, which costs ten times as much as to write a small value.
    warnings: Literal["error"] | bool = "error" if checks else True
    return adapter.serializer.to_json(value, by_alias=True, round_trip=True, warnings=warnings)


def _is_data(hint: Any) -> bool:
    try:
        _adapter_of(hint)
    except Exception:
        return False
    return True


def _is_writable(hint: Any, value: Any) -> bool:
    try:
        dumped(_adapter_of(hint), (value,))
    except ValueError:
        return False
    return True
