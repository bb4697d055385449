"""Decides which values are secret: by their names, such as `password` and `apiKey`, and by their types."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import lru_cache
from typing import Annotated, Any, Final, NamedTuple, TypeGuard, TypeVar, get_args, get_origin

import pydantic
from pydantic import BaseModel, SecretBytes, SecretStr

T = TypeVar("T")

REDACTED: Final = "[redacted]"
"""The text that replaces a secret value."""


class _Marker:
    def __repr__(self) -> str:
        return "secret"


_SECRET: Final = _Marker()
Secret = Annotated[T, _SECRET]
"""`password: Secret[str]`: the parameter or the field is a plain `str`, and no output of fennelq shows its value."""

Rule = tuple[str, ...]
"""Words that a name contains one after the other, in lower case."""

RULES: Final[tuple[Rule, ...]] = (
    ("password",),
    ("passwd",),
    ("pwd",),
    ("passphrase",),
    ("passcode",),
    ("secret",),
    ("token",),
    ("api", "key"),
    ("access", "key"),
    ("private", "key"),
    ("signing", "key"),
    ("encryption", "key"),
    ("authorization",),
    ("auth",),
    ("bearer",),
    ("credential",),
    ("cookie",),
    ("card",),
    ("cvv",),
    ("cvc",),
    ("iban",),
    ("ssn",),
    ("otp",),
    ("jwt",),
)
"""The names of secrets."""
_WHOLE: Final = frozenset({"pass", "pin", "pw"})
"""Names of secrets, which as a part of another name mean something else: `pass_count`, `pin_color`."""
_SUFFIXES: Final = frozenset(
    {"password", "passwd", "passphrase", "secret", "token", "apikey", "authorization", "credential", "cookie"}
)
"""Words that mark a secret at the end of a name that does not separate its words: `userpassword`, `accesstoken`."""
_MEASURES: Final = frozenset(
    {
        "count",
        "counts",
        "expires",
        "length",
        "limit",
        "lifetime",
        "max",
        "min",
        "seconds",
        "size",
        "total",
        "ttl",
    }
)
"""A number whose name has one of these words is not a secret: `max_tokens=500`, `password_length=12`."""
_LONGEST_NAME: Final = 200
_BORDER: Final = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD: Final = re.compile(r"[^\W\d_]+")


def rule_of(name: str) -> Rule:
    """The rule for names like this one: `staffNumber` also stands for `staff_number` and `STAFF-NUMBER`."""
    return tuple(words_of(name))


def is_secret(name: str, value: object, rules: tuple[Rule, ...] = RULES) -> bool:
    """Whether a value with this name is secret. A value that is None, true or false reveals nothing."""
    if value is None or isinstance(value, bool):
        return False
    found = _looks_secret(name[:_LONGEST_NAME], rules)
    return found and not (isinstance(value, int | float) and not _MEASURES.isdisjoint(words_of(name)))


@lru_cache(maxsize=4096)
def _looks_secret(name: str, rules: tuple[Rule, ...]) -> bool:
    words = words_of(name)
    if "".join(words) in _WHOLE:
        return True
    singular = [word.removesuffix("s") for word in words]
    if any(word.endswith(suffix) for word in singular for suffix in _SUFFIXES):
        return True
    return any(_contains(one, rule) for rule in rules for one in (words, singular))


def _contains(words: list[str], rule: Rule) -> bool:
    """Whether the words of the rule follow each other, as words or as one word."""
    return "".join(rule) in words or f" {' '.join(rule)} " in f" {' '.join(words)} "


def words_of(name: str) -> list[str]:
    """The words of a name in lower case: `X-Api-Key`, `xApiKey` and `x_api_key` have the same."""
    return [word.lower() for word in _WORD.findall(_BORDER.sub("_", name[:_LONGEST_NAME]))]


class Marked(NamedTuple):
    """What the types of values say about secrets."""

    whole: bool = False
    """Whether a value of the type is secret."""
    names: frozenset[str] = frozenset()
    """The names of secret fields in values of the type."""


def marked(hint: Any) -> Marked:
    """What a type says: `Secret[T]`, and pydantic's SecretStr, SecretBytes and Secret, also in fields of models."""
    return _marked(hint, frozenset())


_SECRET_TYPES: Final = (SecretStr, SecretBytes, pydantic.Secret)


def has_stars(hint: Any) -> bool:
    """Whether a value of this type contains a SecretStr or another type that pydantic writes as stars, in a field."""
    return _has_stars(hint, frozenset())


def _has_stars(hint: Any, above: frozenset[Any]) -> bool:
    kind = get_origin(hint) or hint
    if not isinstance(kind, typing.Hashable) or kind in above:
        return False
    if any(_has_stars(part, above) for part in get_args(hint)):
        return True
    return any(
        _is_starred(field.hint) or _has_stars(field.hint, above | {kind}) for field in _fields_of(kind)
    )


def _is_starred(hint: Any) -> bool:
    kind = get_origin(hint) or hint
    if _is_class(kind) and issubclass(kind, _SECRET_TYPES):
        return True
    return any(map(_is_starred, get_args(hint)))


def _marked(hint: Any, above: frozenset[Any]) -> Marked:
    hint = getattr(hint, "__supertype__", getattr(hint, "__value__", hint))
    origin = get_origin(hint)
    if origin is Annotated and any(part is _SECRET for part in get_args(hint)):
        return Marked(whole=True)
    kind = origin or hint
    if _is_class(kind) and issubclass(kind, _SECRET_TYPES):
        return Marked(whole=True)
    if not isinstance(kind, typing.Hashable) or kind in above:
        return Marked()
    fields = list(_fields_of(kind))
    inner = [
        _marked(part, above) for part in (get_args(hint) if origin is not Annotated else get_args(hint)[:1])
    ]
    names = _secret_fields(fields, above | {kind})
    if names and _is_class(kind) and issubclass(kind, tuple):
        return Marked(whole=True)  # a NamedTuple is sent as an array, without the names of its fields
    return Marked(any(one.whole for one in inner), names.union(*(one.names for one in inner)))


def _is_class(kind: Any) -> TypeGuard[type[Any]]:
    return isinstance(kind, type)


class _Field(NamedTuple):
    names: tuple[str, ...]
    hint: Any


def _secret_fields(fields: Iterable[_Field], above: frozenset[Any]) -> frozenset[str]:
    found = set[str]()
    for field in fields:
        inner = _marked(field.hint, above)
        found |= inner.names
        if inner.whole:
            found.update(field.names)
    return frozenset(found)


def _fields_of(kind: Any) -> Iterator[_Field]:
    if not _is_class(kind):
        return
    if issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            hint = Annotated[field.annotation, _SECRET] if _SECRET in field.metadata else field.annotation
            aliases = (name, field.alias, field.serialization_alias)
            yield _Field(tuple(alias for alias in aliases if alias), hint)
    elif is_dataclass(kind) or typing.is_typeddict(kind) or hasattr(kind, "_fields"):
        for name, hint in _hints_of(kind).items():
            # The fields of a NamedTuple have no names where they are sent, so their names count here.
            secret = hasattr(kind, "_fields") and is_secret(name, "")
            yield _Field((name,), Annotated[hint, _SECRET] if secret else hint)


def _hints_of(kind: type) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception:  # a name that is not defined here
        return {}
