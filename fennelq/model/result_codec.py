"""Results, encoded by annotation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, cast

from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from fennelq.errors import ConfigurationError
from fennelq.model import misfit
from fennelq.model.codec import VALUES, dumped, tuple_of
from fennelq.model.hints import SENDABLE, hints_of, is_simple, not_data, shown

R_co = TypeVar("R_co", covariant=True)

_Misfit = Callable[[str, Any, Any, ValidationError], str]
"""Returns a sentence why a value does not fit, from the task, its annotation and the value."""


class ResultCodec(Generic[R_co]):
    """Writes and reads the return value of a task."""

    def __init__(self, annotation: Any = JsonValue, task: str = "the task") -> None:
        self.is_none = annotation in (None, type(None))
        """True when the task is annotated `-> None`: then no result is kept."""
        self._annotation, self._task = annotation, task
        self._checks = not is_simple(annotation)
        self._cached: TypeAdapter[tuple[R_co]] | None = None

    @classmethod
    def of(cls, task: str, function: Callable[..., Any]) -> Self:
        """The codec of a function's return annotation; unannotated means any JSON value."""
        annotation = hints_of(task, function).get("return", Any)
        return cls(JsonValue if annotation is Any else annotation, task)

    def check_type(self) -> None:
        """Raises ConfigurationError when no value of the annotated type could be sent."""
        if (culprit := not_data(self._annotation)) is not None:
            raise ConfigurationError(
                f"{self._task}: its result is annotated {shown(culprit)}, which cannot be sent: {SENDABLE}"
            )

    @property
    def _adapter(self) -> TypeAdapter[tuple[R_co]]:
        # The value is in a tuple, because pydantic takes no configuration for a model, dataclass or typed dict.
        if self._cached is None:
            self._cached = TypeAdapter(cast("Any", tuple_of([self._annotation])), config=VALUES)
        return self._cached

    def encode(self, value: Any) -> bytes:
        """The value as JSON; raises ValueError, with a sentence for the user, when it is not as annotated or cannot be
        written."""
        if value is None and self.is_none:
            return b""
        try:
            adapter = self._adapter
            raw = dumped(adapter, adapter.validator.validate_python((value,)), checks=self._checks)
        except Exception as error:
            raise self._misfit(misfit.not_as_annotated, value, error) from _cause(error)
        try:
            adapter.validator.validate_json(raw)
        except Exception as error:
            raise self._misfit(misfit.not_readable, value, error) from _cause(error)
        return raw[1:-1]

    def decode(self, raw: bytes) -> R_co:
        """The value that `encode` wrote; raises ValueError when it cannot be read."""
        if not raw and self.is_none:
            return cast("R_co", None)
        return self._adapter.validate_json(b"[%b]" % raw)[0]

    def _misfit(self, sentence: _Misfit, value: Any, error: Exception) -> ValueError:
        if isinstance(error, ValidationError):
            return ValueError(sentence(self._task, self._annotation, value, error))
        if isinstance(error, PydanticSerializationError):
            return ValueError(misfit.not_sendable(self._task, value, error))
        return ValueError(misfit.broken_check(self._task, self._annotation, value, error))


class Encoded(bytes):
    """A result that the process of the task has encoded."""


class RelayedResultCodec(ResultCodec[R_co]):
    """Takes results that are encoded already as they are: those of tasks that run in a process of their own."""

    def encode(self, value: Any) -> bytes:
        """The value as JSON."""
        return value if isinstance(value, Encoded) else super().encode(value)


ANY_RESULT: ResultCodec[Any] = ResultCodec(JsonValue)


def _cause(error: Exception) -> Exception | None:
    """The error, if the user's code raised it. An error of pydantic is omitted: its message is in the sentence
    already."""
    return None if misfit.is_of_pydantic(error) else error
