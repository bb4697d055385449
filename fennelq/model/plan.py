"""The options with which one delivery is run: those of the task, overridden by those of the call, resolved once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fennelq.errors import ConfigurationError
from fennelq.model.options import FOR_WORKERS, Options, read_wire
from fennelq.model.retry import RetryPolicy, policy_from_wire
from fennelq.model.units import milliseconds


@dataclass(frozen=True, slots=True)
class Plan:
    """The options that the runner uses. An option that the worker reads is an attribute of the same name. It has the
    value that was sent, unless `_CHANGES` converts it."""

    retry: RetryPolicy
    timeout: float | None
    result_ttl_ms: int
    """0 keeps no result."""
    failure_ttl_ms: int
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, options: Options, *, retries: int, result_ttl: float, failure_ttl: float) -> Plan:
        """The plan of a task: its options, and the app's defaults for the others."""
        usual = cls(RetryPolicy(retries), None, milliseconds(result_ttl), milliseconds(failure_ttl))
        return usual._with(options.for_worker())

    def overridden(self, wire: bytes) -> Plan:
        """This plan, overridden by the options of one call; raises ValueError when they cannot be read."""
        if not wire:
            return self
        try:
            return self._with(read_wire(wire))
        except ConfigurationError as error:
            raise ValueError(f"the options of the job cannot be read: {error}") from None

    def _with(self, sent: Mapping[str, Any]) -> Plan:
        changes: dict[str, Any] = {}
        for letter, value in sent.items():
            name = _NAMES[letter]
            changes |= _CHANGES[name](self, value) if name in _CHANGES else {name: value}
        return replace(self, **changes)


def _retry(plan: Plan, value: Any) -> Mapping[str, Any]:
    return {"retry": value if isinstance(value, RetryPolicy) else policy_from_wire(plan.retry, value)}


_NAMES: Final = {option.letter: name for name, option in FOR_WORKERS.items()}
"""`retries` and `retry` share one letter, because both define a policy."""
_CHANGES: Final[Mapping[str, Callable[[Plan, Any], Mapping[str, Any]]]] = {
    "retry": _retry,
    "result_ttl": lambda _, value: {"result_ttl_ms": milliseconds(value)},
    "failure_ttl": lambda _, value: {"failure_ttl_ms": milliseconds(value)},
    "headers": lambda plan, value: {"headers": {**plan.headers, **value}},
}
