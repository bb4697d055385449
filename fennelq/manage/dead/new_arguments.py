"""Computes new arguments of dead jobs, and what follows from them: gates, and idempotency keys."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import orjson

from fennelq.broker.verbs.dead import Change, DeadCall
from fennelq.errors import ConfigurationError, FennelqError, InvalidArguments, PayloadTooLarge, UnknownTask
from fennelq.manage.queues.pausing import this_user
from fennelq.model.checks import check_line
from fennelq.model.codec import CallArguments
from fennelq.model.gates import renewed
from fennelq.model.named_call import Named, by_name, call_of
from fennelq.wording import a_kind_of

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.task import AnyTask

NewArguments = Mapping[str, Any] | Callable[[dict[str, Any]], Mapping[str, Any] | None]
"""Some arguments by name, which replace those of a job; or a function that gets all arguments of a job by name and
returns the new ones. It may return None: then this job stays dead."""

_MOST_BYTES_BEFORE: Final = 4096


class Written(NamedTuple):
    """An argument from a command line: a JSON value, or any other text."""

    text: str

    @property
    def value(self) -> Any:
        """The JSON value, or the text."""
        try:
            return orjson.loads(self.text)
        except ValueError:
            return self.text


class Rewriting:
    """Computes the changes of dead jobs."""

    def __init__(self, app: App, new: NewArguments, *, anyway: bool = False, who: str | None = None) -> None:
        """With `anyway`, it also changes jobs of tasks that this app does not have, without a check."""
        if inspect.iscoroutinefunction(new):
            raise ConfigurationError(
                "the function that makes new arguments is called without await: use a plain one"
            )
        if not callable(new) and not isinstance(new, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"arguments must be a dict of arguments by name or a function, not {a_kind_of(new)}"
            )
        if who:
            check_line("who", who)
        self._app, self._new, self._anyway = app, new, anyway
        self._who = this_user() if who is None else who
        self.unchecked = 0
        """The number of changes without a check, which leave the limits and the keys of the jobs as they are."""

    def change(self, call: DeadCall) -> Change | None:
        """The change of a job; None when it is to stay dead. Raises InvalidArguments when the new arguments do not fit,
        PayloadTooLarge, UnknownTask without the code of the task, and FennelqError when the function fails."""
        task = self._task(call.task)
        try:
            old = self.named(call.task, call.arguments)
        except ValueError as error:
            raise InvalidArguments(call.task, f"the old arguments cannot be read: {error}") from None
        before = f"by {self._who}, with new arguments; before: {self._shown(call.task, old)}"
        before = before.encode("utf-8", "backslashreplace")[:_MOST_BYTES_BEFORE].decode("utf-8", "ignore")
        new = self._after(call.task, old)
        if new is None:
            return None
        if task is None:
            self.unchecked += 1
            return Change(self._unchecked(call.task, new), before=before)
        return _following(task, call, fitting(task, new))._replace(before=before)

    def named(self, task: str, arguments: bytes) -> Named:
        """The arguments of a call by name, as the function gets them. Raises ValueError when they cannot be read."""
        known = self._app.tasks.get(task)
        return by_name(arguments, known.calls.signature if known else ())

    def _task(self, name: str) -> AnyTask | None:
        task = self._app.tasks.get(name)
        if task is None and not self._anyway:
            raise UnknownTask(name, self._app.tasks)
        return task

    def _after(self, task: str, old: Named) -> Named | None:
        if callable(self._new):
            return _called(self._new, task, old)
        return {**old, **self._named(task, self._new)}

    def _named(self, task: str, new: Mapping[str, Any]) -> Mapping[str, Any]:
        """The new arguments by name. Without the code of the task, arguments are numbered: `0=42`."""
        known = self._app.tasks.get(task)
        if known is None or not any(map(str.isdecimal, new)):
            return new
        names = dict(enumerate(known.calls.places(len(new) + 100)[0]))
        return {names.get(int(key), key) if key.isdecimal() else key: value for key, value in new.items()}

    def _shown(self, task: str, old: Named) -> str:
        """The old arguments for the history, without secrets."""
        shown = self._app.redaction.named(task, old)
        return json.dumps(shown, ensure_ascii=False, separators=(",", ":"))

    def _unchecked(self, task: str, new: Named) -> bytes:
        encoded = _encoded(task, {name: _value(one) for name, one in new.items()})
        _check_size(task, encoded, self._app.settings.max_payload_bytes)
        return encoded


def _called(function: Callable[[Named], object], task: str, old: Named) -> Named | None:
    name = getattr(function, "__qualname__", None) or type(function).__name__
    try:
        returned = function(old)
    except Exception as error:
        raise FennelqError(f"{name} raised {type(error).__name__}: {str(error)[:500]}") from error
    if returned is None:
        return None
    named = cast("Mapping[Any, Any]", returned)
    if not isinstance(returned, Mapping) or not all(isinstance(key, str) for key in named):
        kind = a_kind_of(cast("Any", returned))
        raise InvalidArguments(task, f"{name} returned {kind}: it must return the arguments by name, or None")
    return dict(named)


def fitting(task: AnyTask, new: Named) -> CallArguments:
    """The new arguments as the task would send them. Raises InvalidArguments when they do not fit.

    If a value does not fit as a JSON value, this tries it as a text: in `name=42`, with a parameter `name: str`, 42 is
    a text.
    """
    values, first = {name: _value(one) for name, one in new.items()}, None
    while True:
        try:
            args, kwargs = task.calls.decode(_encoded(task.name, values, task.calls.signature))
            encoded = task.calls.encode(args, kwargs)
        except InvalidArguments as error:
            first = first or error
            written = new.get(error.parameter or "")
            if not isinstance(written, Written) or values[str(error.parameter)] == written.text:
                raise first from None
            values[str(error.parameter)] = written.text
        else:
            _check_size(task.name, encoded, task.app.settings.max_payload_bytes)
            return CallArguments(task.calls, args, kwargs, encoded)


def _value(one: object) -> Any:
    return one.value if isinstance(one, Written) else one


def _encoded(task: str, new: Named, parameters: tuple[inspect.Parameter, ...] = ()) -> bytes:
    try:
        return call_of(new, parameters)
    except (ValueError, TypeError) as error:
        raise InvalidArguments(task, f"the new arguments cannot be encoded: {error}") from None


def _check_size(task: str, encoded: bytes, most: int) -> None:
    if len(encoded) > most:
        raise PayloadTooLarge(f"the new arguments of {task}", len(encoded), most)


def _following(task: AnyTask, call: DeadCall, new: CallArguments) -> Change:
    key = _key(task, call, new)
    gates = task.limits.gates(new.by_name()) if task.limits else ""
    if key is not None and task.deduplication is not None:
        gates = f"{gates} {task.deduplication.gate_of(key)}".strip()
    gates = renewed(call.gates, gates)
    held = None if key is None else call.idempotency[:1] + key
    return Change(
        new.encoded,
        None if gates == call.gates else gates,
        None if held == call.idempotency else held,
    )


def _key(task: AnyTask, call: DeadCall, new: CallArguments) -> str | None:
    """The new key of a job; None when its key is not computed from the arguments. If the call itself has named the key,
    the old arguments give another one."""
    if not call.idempotency or task.deduplication is None:
        return None
    try:
        args, kwargs = task.calls.decode(call.arguments)
        before = task.deduplication.computed(CallArguments(task.calls, args, kwargs, call.arguments))
    except InvalidArguments:
        before = None  # they do not fit, which may be why the job is dead
    if before is not None and before != call.idempotency[1:]:
        return None
    return task.deduplication.computed(new)
