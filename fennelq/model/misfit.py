"""Sentences for a return value that cannot be sent: they name the task, the value, the place in it, and the cure."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, JsonValue, ValidationError
from pydantic.errors import PydanticErrorMixin, PydanticSchemaGenerationError
from pydantic_core import ErrorDetails, PydanticSerializationError, to_json

from fennelq.model.hints import SENDABLE, shown
from fennelq.wording import a_kind_of

_WIDEST, _DEEPEST = 300, 100
_TYPE_SAYS_ALL = ("_type", "int_parsing", "float_parsing", "bool_parsing", "none_required", "is_instance_of")
"""Kinds of errors that the two types explain well enough."""
_UNDEFINED: Final = re.compile(r"you should define `([^`]+)`")
_ADVICE: Final = {
    "AsyncResult": "return its id, or await its get()",
    "BlockingResult": "return its id, or what its get() returns",
    "Job": "send it, and return the id of the result",
}


def not_as_annotated(task: str, annotation: Any, value: Any, error: ValidationError) -> str:
    """The sentence for a value that is not of the annotated type."""
    if sentence := _never_a_result(task, value):
        return sentence
    first = error.errors(include_url=False, include_context=False)[0]
    is_key = first["loc"][-1:] == ("[key]",)
    where, culprit = _at(value, first["loc"][1 : -2 if is_key else None])
    if is_key:
        culprit = first["input"]
    if sentence := _never_a_result(task, culprit):
        return sentence
    if annotation is JsonValue:
        return _not_json(task, culprit, where, is_key=is_key)
    annotated = f"but its annotation is {shown(annotation)}"
    if first["type"] == "missing":
        return (
            f"{task} returned {_kind(culprit)}{_in(where)} without {str(first['loc'][-1])!r:.80}, {annotated}"
        )
    more = "" if not where and first["type"].endswith(_TYPE_SAYS_ALL) else f": {_message(first)}"
    return f"{task} returned {_kind(culprit)}{_in(where)}, {annotated}{more}"


def not_sendable(task: str, value: Any, error: PydanticSerializationError) -> str:
    """The sentence for a value that cannot be written as JSON."""
    if "unknown type" not in str(error):
        return _cut(f"{task} returned {_kind(value)}, which cannot be written as JSON: {plainly(str(error))}")
    where, culprit = _unwritable(value)
    return _never_a_result(
        task, culprit
    ) or f"{task} returned {a_kind_of(culprit)}{_in(where)}, which cannot be sent: " + (
        _ADVICE.get(type(culprit).__name__) or SENDABLE
    )


def not_readable(task: str, annotation: Any, value: Any, error: ValidationError) -> str:
    """The sentence for a value whose JSON does not fit the annotation: a model with hooks of its own may write such."""
    first = error.errors(include_url=False, include_context=False)[0]
    where, _ = _at(value, first["loc"][1:])
    what = f"{first['loc'][-1]!r:.80} is missing" if first["type"] == "missing" else _message(first)
    return f"{task} returned {_kind(value)}, whose JSON cannot be read back as {shown(annotation)}{_in(where)}: {what}"


def broken_check(task: str, annotation: Any, value: Any, error: BaseException) -> str:
    """The sentence for a value whose type cannot be used, or whose own code failed while it was checked or written."""
    if isinstance(error, PydanticSchemaGenerationError):
        return f"{task} is annotated to return {shown(annotation)}, which cannot be sent: {SENDABLE}"
    what = plainly(str(error)) if is_of_pydantic(error) else f"{type(error).__name__}: {error}"
    return _cut(f"{task} returned {_kind(value)}, which cannot be checked or written: {what}")


def is_of_pydantic(error: BaseException) -> bool:
    """Whether pydantic itself raised the error, and not code of the user that it called."""
    return isinstance(error, ValidationError | PydanticSerializationError | PydanticErrorMixin)


def plainly(text: str) -> str:
    """The message of pydantic in one line, without pydantic's internal names."""
    if "may not be as expected" in text:
        return "one of its fields has a value that does not fit its annotation"
    if found := _UNDEFINED.search(text):
        return f"the name {found[1]!r} in its type is not defined"
    return text.partition("\n")[0]


def _never_a_result(task: str, value: Any) -> str:
    """A hint at the right code, for a value that a task can only return by mistake."""
    if inspect.iscoroutine(value):
        name = value.__qualname__
        value.close()  # otherwise Python would warn that it was never awaited
        return f"{task} returned a coroutine: write `return await {name}(…)`, in an async def task"
    if inspect.isasyncgen(value) or _is_a(value, Iterator):
        return f"{task} returned {a_kind_of(value)}, which cannot be sent: return a list of what it yields"
    if isinstance(value, BaseException):
        return f"{task} returned {type(value).__name__} instead of raising it: write raise {type(value).__name__}(…)"
    if isinstance(value, type) and issubclass(value, BaseException):
        return f"{task} returned {value.__name__} instead of raising it: write raise {value.__name__}(…)"
    return ""


def _not_json(task: str, culprit: Any, where: str, *, is_key: bool) -> str:
    kind = _kind(culprit)
    what = f"{kind} as a key of a dict" if is_key else a_kind_of(culprit)
    like = "" if where else f", like -> {f'dict[{kind}, …]' if is_key else kind}"
    advice = _ADVICE.get(type(culprit).__name__) or (
        f"without a return annotation only JSON values can be: annotate what it returns{like}"
    )
    return f"{task} returned {what}{_in(where)}, which cannot be sent: {advice}"


def _at(value: Any, path: Sequence[int | str]) -> tuple[str, Any]:
    """The place of an error in the value, and the part that is there. It skips parts of the path that name types."""
    where = ""
    for part in path:
        inner: Any = _NOTHING
        if _is_a(value, Mapping):
            inner = value.get(part, _NOTHING)
        elif isinstance(part, int) and _is_a(value, list, tuple):
            inner = value[part] if part < len(value) else _NOTHING
        elif isinstance(part, str) and _has_fields(value):
            inner = getattr(value, part, _NOTHING)
        if inner is not _NOTHING:
            where, value = f"{where}[{part!r:.80}]", inner
    return _cut(where), value


_NOTHING: Final = object()


def _unwritable(value: Any) -> tuple[str, Any]:
    """The place of the first part of the value that cannot be written, and that part."""
    where = ""
    for _ in range(_DEEPEST):
        found = next(((name, part) for name, part in _parts(value) if not _is_writable(part)), None)
        if found is None:
            break
        where, value = f"{where}[{found[0]!r:.80}]", found[1]
    return _cut(where), value


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    if _is_a(value, Mapping):
        members: Iterable[tuple[Any, Any]] = value.items()
        return members
    if _is_a(value, list, tuple, set, frozenset):
        elements: Iterable[Any] = value
        return enumerate(elements)
    fields: dict[str, Any] = getattr(value, "__dict__", {}) if _has_fields(value) else {}
    return fields.items()


def _is_a(value: Any, *kinds: type) -> bool:
    """As `isinstance`, but for a type checker the elements of the value remain Any."""
    return isinstance(value, kinds)


def _has_fields(value: Any) -> bool:
    return not isinstance(value, type) and (isinstance(value, BaseModel) or dataclasses.is_dataclass(value))


def _is_writable(value: Any) -> bool:
    try:
        to_json(value)
    except Exception:
        return False
    return True


def _in(where: str) -> str:
    return f" in {where}" if where else ""


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__[:100]


def _message(first: ErrorDetails) -> str:
    return _cut(first["msg"].removeprefix("Value error, "))


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[:_WIDEST]}…"
