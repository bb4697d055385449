"""How one delivery is to be run: the task's options with what the call overrode, resolved once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fennelq.errors import ConfigurationError
from fennelq.model.options import UNSET, Options, WireOptions, milliseconds, read_wire, seconds
from fennelq.model.retry import RetryPolicy, policy_from_wire


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything the runner decides by."""

    retry: RetryPolicy
    timeout: float | None
    result_ttl_ms: int
    """0 keeps no result."""
    failure_ttl_ms: int
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, options: Options, *, retries: int, result_ttl: float, failure_ttl: float) -> Plan:
        """The plan of a task, with the app's defaults below its options."""
        policy = RetryPolicy(retries) if options.retry is UNSET else options.retry
        if options.retry is UNSET and options.retries is not UNSET:
            policy = replace(policy, retries=options.retries)
        timeout = None if options.timeout is UNSET or options.timeout is None else seconds(options.timeout)
        return cls(
            retry=policy,
            timeout=timeout,
            result_ttl_ms=milliseconds(result_ttl if options.result_ttl is UNSET else options.result_ttl),
            failure_ttl_ms=milliseconds(failure_ttl if options.failure_ttl is UNSET else options.failure_ttl),
            headers={} if options.headers is UNSET else dict(options.headers),
        )

    def overridden(self, wire: bytes) -> Plan:
        """This plan with the options that one call sent along; raises ValueError when they cannot be read."""
        if not wire:
            return self
        try:
            return replace(self, **self._changes(read_wire(wire)))
        except ConfigurationError as error:
            raise ValueError(f"the options of the job cannot be read: {error}") from None

    def _changes(self, said: WireOptions) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        if "r" in said:
            changes["retry"] = policy_from_wire(self.retry, said["r"])
        if "t" in said:
            changes["timeout"] = said["t"]
        if "s" in said:
            changes["result_ttl_ms"] = milliseconds(said["s"])
        if "f" in said:
            changes["failure_ttl_ms"] = milliseconds(said["f"])
        if "h" in said:
            changes["headers"] = {**self.headers, **said["h"]}
        return changes
