"""Hides secrets in everything that people see: the one place for commands, their JSON, exports, logs and the history.

Jobs keep their arguments as they are: workers need them. Only what is shown is changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeGuard, TypeVar

from pydantic_core import from_json, to_json

from fennelq.broker.connection import masked
from fennelq.errors import ConfigurationError, InvalidFilter
from fennelq.model.query import Query, Term, parse
from fennelq.model.secrets import REDACTED, RULES, Marked, is_secret, marked, rule_of
from fennelq.wording import a_kind_of

if TYPE_CHECKING:
    from fennelq.task import AnyTask

Hide = Callable[[str, dict[str, Any]], Mapping[str, Any]]
"""A function for `app.redacting`."""
H = TypeVar("H", bound=Hide)

_SHORTEST: Final = 4
"""The fewest characters of a secret that is looked for in messages: a shorter one is a part of many ordinary words."""
_MOST_SECRETS: Final = 1000
_MOST_WARNED: Final = 1000
_URL: Final = re.compile(r"[\w+.-]{1,30}://\S{1,4000}")


class _Places(NamedTuple):
    """The names of the positional arguments of a call, and what the types of its task say."""

    names: Sequence[str]
    rest: str | None
    """The name of all further ones; None when the task is unknown here."""
    marks: Marked


class Redaction:
    """The rules of an app."""

    def __init__(self, tasks: Mapping[str, AnyTask], names: Iterable[str] = ()) -> None:
        self._tasks = tasks
        self._rules = (*RULES, *filter(None, map(rule_of, names)))
        self._hooks: list[Hide] = []
        self._marks: dict[str, Marked] = {}
        self._warned = set[str]()

    def add(self, hide: Hide) -> None:
        """Call this function with the arguments of every job that is shown."""
        if not callable(hide):
            raise ConfigurationError(
                f"app.redacting takes a function like `def hide(task, arguments): …`, not {a_kind_of(hide)}"
            )
        self._hooks.append(hide)

    def call(self, task: str, arguments: bytes) -> Any:
        """The call of a job as it may be shown, `[[…],{…}]`; None when its arguments were not kept, and `[redacted]`
        when they cannot be read."""
        return self._call(task, arguments, set()) if arguments else None

    def named(self, task: str, named: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, as they may be shown. A number instead of a name is the place of an argument
        whose name is unknown."""
        marks, secrets = self._places(task, 0).marks, set[str]()
        try:
            shown = {**dict.fromkeys(named, REDACTED), **self._shown(task, dict(named))}
            return {
                name: self._value(one, None if name.isdecimal() else name, marks, secrets)
                for name, one in shown.items()
            }
        except RecursionError:
            return dict.fromkeys(named, REDACTED)

    def argument(self, name: str, value: Any) -> Any:
        """An argument of some task with this name, as it may be shown: it is secret if it is secret in one task."""
        every = (self._places(task, 0).marks.names for task in self._tasks)
        if self._hooks or name.isdecimal() or any(name in names for names in every):
            return REDACTED
        return self.fact(name, value)

    def filter(self, text: str) -> str:
        """A filter of jobs as it may be shown: the header that it names may be secret."""
        try:
            query = parse(text, datetime.now(UTC), bounded=False)
        except InvalidFilter:
            return REDACTED
        shown = Query.of(map(self._term, query.terms))
        return text if shown == query else str(shown)

    def _term(self, term: Term) -> Term:
        name, equals, value = term.value.partition("=")
        if term.word != "header" or not equals:
            return term
        return term._replace(value=f"{name}={self.fact(name, value)}")

    def headers(self, headers: Mapping[str, str]) -> dict[str, Any]:
        """Headers as they may be shown."""
        shown: dict[str, Any] = self._value(dict(headers), "", Marked(), set())
        return shown

    def options(self, options: bytes) -> Any:
        """The options of a job that workers read, as they may be shown; they contain the headers."""
        return self._value(_json(options), "", Marked(), set()) if options else None

    def fact(self, name: str, value: Any) -> Any:
        """A value with this name, as it may be shown."""
        return self._value(value, name, Marked(), set())

    def hiding(self, task: str, arguments: bytes, options: bytes) -> Callable[[str], str]:
        """A function that hides the secrets of a job in texts about its failure, because a message may quote them."""
        secrets = set[str]()
        with suppress(Exception):  # the failure must be written, whatever the arguments contain
            self._call(task, arguments, secrets)
            self._value(_json(options), "", Marked(), secrets)
        # The longest first: a secret may contain another one.
        found = sorted(filter(_is_findable, secrets), key=len, reverse=True)[:_MOST_SECRETS]

        def hidden(text: str) -> str:
            for secret in found:
                text = text.replace(secret, REDACTED)
            return text

        return hidden

    def _call(self, task: str, arguments: bytes, secrets: set[str]) -> Any:
        call = _json(arguments)
        if not (is_array(call) and len(call) == 2 and is_array(call[0]) and is_object(call[1])):
            return REDACTED
        args, kwargs = call[0], call[1]
        places = self._places(task, len(args))
        names = [*places.names, *[places.rest] * (len(args) - len(places.names))]
        try:
            shown = self._hooked(task, args, kwargs, places, secrets)
            return [
                [
                    self._value(one, name, places.marks, secrets)
                    for one, name in zip(shown[0], names, strict=True)
                ],
                {name: self._value(one, name, places.marks, secrets) for name, one in shown[1].items()},
            ]
        except RecursionError:
            return REDACTED

    def _value(self, value: Any, name: str | None, marks: Marked, secrets: set[str]) -> Any:
        """A value as it may be shown. The elements of a list have the name of the list. A text whose name is unknown is
        hidden: it may be a password."""
        if name is not None and (name in marks.names or is_secret(name, value, self._rules)):
            _collect(value, secrets)
            return value if value is None else REDACTED
        if is_object(value):
            return {key: self._value(one, key, marks, secrets) for key, one in value.items()}
        if is_array(value):
            return [self._value(one, name, marks, secrets) for one in value]
        if isinstance(value, str):
            return REDACTED if name is None else _without_password(value, secrets)
        return value

    def _places(self, task: str, count: int) -> _Places:
        known = self._tasks.get(task)
        if known is None:
            return _Places((), None, Marked())
        if task not in self._marks:
            self._marks[task] = _marks_of(known)
        names, rest = known.calls.places(count)
        return _Places(names, rest, self._marks[task])

    # Functions of the user

    def _hooked(
        self, task: str, args: list[Any], kwargs: dict[str, Any], places: _Places, secrets: set[str]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The call as the functions of the user show it. They get its arguments by name; further positional arguments
        are a list."""
        if not self._hooks:
            return args, kwargs
        fixed, rest = len(places.names), places.rest or "args"
        named = {**dict(zip(places.names, args, strict=False)), **kwargs}
        if len(args) > fixed:
            named[rest] = args[fixed:]
        shown = self._shown(task, named)
        for name, value in named.items():
            if shown.get(name, REDACTED) != value:
                _collect(value, secrets)
        further: object = shown.pop(rest, None) if len(args) > fixed else []
        if not is_array(further) or len(further) != len(args) - fixed:
            further = [REDACTED] * (len(args) - fixed)
        first = [shown.pop(name, REDACTED) for name in places.names]
        return [*first, *further], {**dict.fromkeys(kwargs, REDACTED), **shown}

    def _shown(self, task: str, named: dict[str, Any]) -> dict[str, Any]:
        shown = named
        for hide in self._hooks:
            try:
                shown = {str(name): value for name, value in hide(task, {**shown}).items()}
            except Exception as error:  # it is the user's code; what it was going to hide must stay hidden
                self._warn(task[:200], f"{type(error).__name__}: {error}")
                return dict.fromkeys(named, REDACTED)
        return shown

    def _warn(self, task: str, error: str) -> None:
        from fennelq import log

        if task not in self._warned and len(self._warned) < _MOST_WARNED:
            self._warned.add(task)
            _logger = log.get("fennelq.redaction")
            _logger.warning("redacting_failed", task=task, error=error)


UNKNOWN: Final = Redaction({})
"""Without the code of an app: the names of positional arguments are unknown, so their texts are hidden."""


class _Open(Redaction):
    """Hides nothing."""

    def call(self, task: str, arguments: bytes) -> Any:
        """The call of a job as it is."""
        return _json(arguments)

    def headers(self, headers: Mapping[str, str]) -> dict[str, Any]:
        """The headers as they are."""
        return dict(headers)

    def options(self, options: bytes) -> Any:
        """The options as they are."""
        return _json(options)


WITH_SECRETS: Final[Redaction] = _Open({})
"""For an export that can be imported again: shows everything."""


def _marks_of(task: AnyTask) -> Marked:
    names = set[str]()
    for name, hint in task.calls.hints.items():
        found = marked(hint)
        names |= found.names
        if found.whole:
            names.add(name)
    return Marked(names=frozenset(names))


def unhidden(value: Any, shown: Any, original: Any) -> Any:
    """A value that a person has changed, with the original parts in place of those that are as they were shown. Raises
    ValueError when a part is hidden whose original is not known, because it is in another place now."""
    if is_object(value) and is_object(shown) and is_object(original):
        return {
            name: unhidden(one, shown.get(name), original[name]) if name in original else _not_hidden(one)
            for name, one in value.items()
        }
    if (
        is_array(value)
        and is_array(shown)
        and is_array(original)
        and len(value) == len(shown) == len(original)
    ):
        return [unhidden(*three) for three in zip(value, shown, original, strict=True)]
    return original if to_json(value) == to_json(shown) else _not_hidden(value)


def _not_hidden(value: Any) -> Any:
    if json.dumps(REDACTED) in json.dumps(value, ensure_ascii=False):
        raise ValueError(f"{REDACTED} stands for the value that was in its place: write the value itself")
    return value


def is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    """Whether this is a JSON object."""
    return isinstance(value, dict)


def is_array(value: Any) -> TypeGuard[list[Any]]:
    """Whether this is a JSON array."""
    return isinstance(value, list)


def _json(raw: bytes) -> Any:
    try:
        return from_json(raw) if raw else None
    except ValueError:
        return None


def _without_password(text: str, secrets: set[str]) -> str:
    """The text; if it is a URL with a password, without the password."""
    shown = masked(text) if _URL.fullmatch(text) else text
    if shown != text:
        secrets.add(text)
    return shown


def _collect(value: Any, secrets: set[str]) -> None:
    """Add the texts and numbers in a secret value, as a message may quote them."""
    if len(secrets) >= _MOST_SECRETS:
        return
    if is_object(value):
        value = [*value.values()]
    if is_array(value):
        for one in value:
            _collect(one, secrets)
    elif isinstance(value, str):
        secrets |= {value, repr(value)[1:-1]}
    elif isinstance(value, int | float) and not isinstance(value, bool):
        secrets.add(str(value))


def _is_findable(secret: str) -> bool:
    return len(secret) >= _SHORTEST and not secret.isspace()
