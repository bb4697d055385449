"""Deduplication: what happens to a call when an earlier call had the same key."""

from __future__ import annotations

import base64
import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, get_args

from pydantic_core import to_jsonable_python

from fennelq.errors import ConfigurationError, InvalidArguments
from fennelq.model.checks import KEY, check_duration, check_key
from fennelq.model.gates import CONCURRENCY, LATEST, Gate
from fennelq.model.job import Dedupe
from fennelq.model.limits import short_name
from fennelq.model.units import milliseconds
from fennelq.wording import a_kind_of, suggestion

OnDuplicate = Literal["return", "raise", "replace"]
"""What a call does whose key is held: return the handle of the job, raise DuplicateJob, or replace its arguments."""
KeyOfCall = Callable[[Mapping[str, Any]], str]
"""Computes a key from the arguments of a call, by name."""

HELD: Final[Mapping[Dedupe, str]] = {
    "until_start": "<",
    "until_done": ">",
    "throttle": "~",
    "debounce": "<",
    "latest": "^",
}
"""The first letter of the field `idempotency`: in which states the job holds its key. See `lua/lib/holder.lua`."""

OF_MODES: Final = frozenset(("ttl", "on_duplicate", "wait", "max_wait"))
"""The options that depend on the mode."""

_READABLE: Final = re.compile(r"-?\d{1,20}|(?!(?:true|false|null)$)[A-Za-z][A-Za-z0-9_.-]{0,31}")
_LONGEST: Final = 64
_EXAMPLE: Final = "key=dedupe.arguments()"
_ONE_VALUE: Final = 'to hold a key for a time use dedupe="throttle"'


class Arguments(Protocol):
    """The arguments of a call, in the forms from which a key is computed."""

    def by_name(self) -> Mapping[str, Any]:
        """The values that the caller has passed, and the defaults of the others."""
        ...

    def as_json(self) -> Mapping[str, Any]:
        """The same, in the form in which they are sent, or would be."""
        ...


@dataclass(frozen=True, slots=True)
class ArgumentsKey:
    """Computes a key from the values of some arguments, or of all. `arguments()` makes it."""

    parameters: tuple[str, ...]

    def __call__(self, values: Mapping[str, Any], /) -> str:
        """The key of a call with these values. Short ones can be read in it: `user_id=42`."""
        chosen = {name: values[name] for name in self.parameters or sorted(values)}
        texts = {name: _text_of(value) for name, value in chosen.items()}
        key = ",".join(f"{name}={text}" for name, text in texts.items()) or "()"
        if all(map(_READABLE.fullmatch, texts.values())) and len(key) <= _LONGEST and KEY.fullmatch(key):
            return key
        return _digest(_text_of(chosen))


def arguments(*parameters: str) -> KeyOfCall:
    """Makes the key of each call from the values of its arguments: `key=dedupe.arguments()`. Or from those of some
    parameters only: `key=dedupe.arguments("user_id")`."""
    for name in parameters:
        if not (isinstance(name, str) and name.isidentifier()):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"dedupe.arguments takes names of parameters, not {name!r:.80}")
    return ArgumentsKey(parameters)


CallKey = str | Callable[[Mapping[str, Any]], str]
"""The option `key`: the key itself, `dedupe.arguments(…)`, or a function that gets the arguments by name."""


def mode_of(held: str, *, debounced: bool) -> Dedupe | None:
    """The mode of a job, from the first letter of its key; None for a plain key, and for a letter that only a later
    version knows."""
    if debounced:
        return "debounce"
    return next((mode for mode, letter in HELD.items() if letter == held), None)


# Checks of the options


def check_key_given(name: str, value: Any) -> None:
    """The option `key`."""
    if value is arguments:
        raise ConfigurationError(f"{name}=dedupe.arguments needs parentheses: {_EXAMPLE}")
    if inspect.iscoroutinefunction(value):
        raise ConfigurationError(
            f"the {name} is an async function, and is called without await: use a plain one"
        )
    if not callable(value):
        check_key(name, value)


def check_mode(name: str, value: Any) -> None:
    """The option `dedupe`."""
    if value not in get_args(Dedupe):
        raise ConfigurationError(f"{name} {value!r:.80} is not one of {', '.join(get_args(Dedupe))}")


def check_on_duplicate(name: str, value: Any) -> None:
    """The option `on_duplicate`."""
    if value not in get_args(OnDuplicate):
        raise ConfigurationError(f"{name} {value!r:.80} is not one of {', '.join(get_args(OnDuplicate))}")


def check_wait(name: str, value: Any) -> None:
    """The options `wait` and `max_wait`."""
    check_duration(name, value)
    if not milliseconds(value):
        raise ConfigurationError(f"{name} must be at least a millisecond, not {value!r}")


def check_together(given: Mapping[str, Any]) -> None:
    """Raises ConfigurationError for options that make no sense together, and names the mode that does."""
    mode = given.get("dedupe")
    for name in ("wait", "max_wait"):
        if name in given and mode != "debounce":
            raise ConfigurationError(f'{name}= is how long dedupe="debounce" waits{_but(mode)}')
    if mode is not None:
        _check_ttl(mode, given)
    if mode == "debounce":
        _check_debounce(given)
    if "on_duplicate" in given:
        _check_duplicate(mode, given["on_duplicate"])
    if "job_id" in given and replaces(given):
        raise ConfigurationError(
            f"job_id= gives a call a job of its own, and {_replacing(given)} gives its arguments to the job that "
            "waits: leave out one of them"
        )


def replaces(given: Mapping[str, Any]) -> bool:
    """Whether a call with these options replaces an earlier one that waits."""
    return given.get("on_duplicate") == "replace" or given.get("dedupe") in ("debounce", "latest")


def _but(mode: str | None) -> str:
    return f', and this is dedupe="{mode}"' if mode else ': add dedupe="debounce"'


def _replacing(given: Mapping[str, Any]) -> str:
    mode = given.get("dedupe")
    return f'dedupe="{mode}"' if mode in ("debounce", "latest") else 'on_duplicate="replace"'


def _check_ttl(mode: Dedupe, given: Mapping[str, Any]) -> None:
    if mode != "throttle" and "ttl" in given:
        raise ConfigurationError(f'dedupe="{mode}" holds the key without ttl=: {_ONE_VALUE}')
    if mode == "throttle" and not milliseconds(given.get("ttl", 0)):
        raise ConfigurationError('dedupe="throttle" needs ttl=, the seconds for which the key is held')


def _check_debounce(given: Mapping[str, Any]) -> None:
    if "wait" not in given:
        raise ConfigurationError(
            'dedupe="debounce" needs wait=, the seconds from the last call to the start of the job'
        )
    if "max_wait" in given and milliseconds(given["max_wait"]) < milliseconds(given["wait"]):
        raise ConfigurationError(
            f"max_wait={given['max_wait']!r} is shorter than wait={given['wait']!r}: it is the longest time from the "
            "first call to the start of the job"
        )
    for name in ("at", "delay"):
        if name in given:
            raise ConfigurationError(
                f'{name}= fixes when the job is due, and dedupe="debounce" postpones that with each call: use '
                f'dedupe="until_start" and on_duplicate="replace" with {name}='
            )


def _check_duplicate(mode: Dedupe | None, duplicate: OnDuplicate) -> None:
    if duplicate == "replace" and mode in (None, "until_done", "throttle"):
        its = f'dedupe="{mode}"' if mode else "a key without dedupe="
        raise ConfigurationError(
            f'on_duplicate="replace" replaces the arguments of a job that has not begun, and {its} holds the key after '
            'that: dedupe="latest" replaces them too, and runs once more if the job runs already; '
            'dedupe="until_start" and dedupe="debounce" replace them as well'
        )
    if duplicate != "replace" and mode in ("debounce", "latest"):
        raise ConfigurationError(
            f'dedupe="{mode}" replaces the arguments of the job that waits, so on_duplicate="{duplicate}" does not '
            f'fit: use dedupe="until_start" with it'
        )


# The key of a call


class Deduplication:
    """What the calls through one task do about duplicates."""

    def __init__(self, task: str, options: Mapping[str, Any]) -> None:
        self._task = task
        self._key: CallKey | None = options.get("key")
        self._latest = options.get("dedupe") == "latest"
        self._asked = next((name for name in ("dedupe", "on_duplicate") if name in options), "")

    @classmethod
    def of(cls, task: str, options: Mapping[str, Any]) -> Deduplication | None:
        """Of a task with these options; None when calls carry nothing but perhaps a key that is a text."""
        made = cls(task, options)
        return made if made._asked or callable(made._key) else None

    def check(self, names: Callable[[str], bool], parameters: Iterable[str]) -> None:
        """Raises ConfigurationError when the key names an argument that the task does not have."""
        for name in self._key.parameters if isinstance(self._key, ArgumentsKey) else ():
            if not names(name):
                hint = suggestion(name, parameters)
                raise ConfigurationError(
                    f"{self._task} has no parameter {name!r}, which is part of its key{hint}"
                )

    def added_to(self, carried: Mapping[str, Any], call: Arguments) -> dict[str, Any]:
        """What a call carries, with its key. Raises ConfigurationError without a key."""
        if self._key is None:
            raise ConfigurationError(
                f"{self._task} has {self._asked}=, and this call has no key by which to find duplicates: add a text, "
                f'{_EXAMPLE}, or {_EXAMPLE[:-1]}"user_id")'
            )
        key = self._key_of(call)
        more = {**carried, "idempotency": f"{self._task}:{key}"}
        if self._latest:
            gates = more.get("gates", "")
            more["gates"] = f"{gates} {self._gate(key)}".strip()
        return more

    def computed(self, call: Arguments) -> str | None:
        """The key of a call, when it is computed from the arguments; None when it is a text, or the call has to have
        one."""
        return f"{self._task}:{self._key_of(call)}" if callable(self._key) else None

    def gate_of(self, key: str) -> str:
        """The gate that belongs to such a key; empty when its mode needs none."""
        return str(self._gate(key.removeprefix(f"{self._task}:"))) if self._latest else ""

    def _key_of(self, call: Arguments) -> str:
        key = self._key
        if not callable(key):
            return str(key)
        values = call.as_json() if isinstance(key, ArgumentsKey) else call.by_name()
        for name in key.parameters if isinstance(key, ArgumentsKey) else ():
            if name not in values:
                raise InvalidArguments(self._task, "it is part of the key, and its value is missing", name)
        try:
            found = key(values)
        except Exception as error:
            raise InvalidArguments(
                self._task, f"the function that computes the key raised {type(error).__name__}: {error}"
            ) from error
        try:
            check_key("key", found)
        except ConfigurationError as error:
            raise InvalidArguments(
                self._task, f"the function that computes the key returned {a_kind_of(found)}: {error}"
            ) from None
        return found

    def _gate(self, key: str) -> Gate:
        """With `latest`, one job of a key runs at a time, so that the newest runs last."""
        return Gate(CONCURRENCY, 1, 1, f"{LATEST}{short_name(self._task)}/{_digest(key)[:12]}")


def _text_of(value: object) -> str:
    plain = to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="strings")
    if isinstance(plain, str) and _READABLE.fullmatch(plain) and not plain.lstrip("-").isdigit():
        return plain
    return json.dumps(plain, sort_keys=True, separators=(",", ":"))


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return base64.b32encode(digest)[:20].decode().lower()
