"""A job as it is sent: with its encoded arguments, and the other values that it carries, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self, TypeVar

import orjson

from fennelq.model.codec import ANY_RESULT, ResultCodec
from fennelq.model.fields import KNOWN
from fennelq.model.job import Job, Priority

R_co = TypeVar("R_co", covariant=True)

NOTHING: Final[Mapping[str, Any]] = {}


class WireJob(Job[R_co]):
    """Everything that `enqueue` sends to Redis about a job."""

    # A class with slots and no defaults, because one is made for every call: it takes half the time of a named tuple.
    __slots__ = ("args", "carried", "returns")

    args: bytes
    returns: ResultCodec[R_co]
    carried: Mapping[str, Any]
    """Values that most calls do not have, by the names of the table of fields. All calls of a task share one
    mapping."""

    def __init__(
        self,
        queue: str,
        key: str,
        task: str,
        args: bytes,
        returns: ResultCodec[R_co],
        carried: Mapping[str, Any] = NOTHING,
    ) -> None:
        self._queue, self._key, self._task = queue, key, task
        self.args, self.returns, self.carried = args, returns, carried

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WireJob) and self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def priority(self) -> Priority:
        """Its lane of the queue."""
        priority: Priority = self.carried.get("priority", "normal")
        return priority

    @property
    def size(self) -> int:
        """The approximate number of bytes of the job on the wire."""
        return len(self.args) + 100 + (len(self.carried.get("options", "")) if self.carried else 0)

    def to_wire(self) -> bytes:
        """The job as JSON, to be handed over. Default values are left out, so that an older version can read it."""
        return orjson.dumps(
            {
                "queue": self._queue,
                "key": self._key,
                "task": self._task,
                "args": self.args.decode(),
                **self.carried,
            }
        )

    @classmethod
    def from_wire(cls, raw: bytes) -> Self:
        """Reads a job that `to_wire` wrote; raises ValueError when it cannot, for example for a later version's."""
        try:
            carried = orjson.loads(raw)
            queue, key, task, args = (carried.pop(name) for name in ("queue", "key", "task", "args"))
            if strange := carried.keys() - KNOWN:
                raise ValueError(f"unknown field {min(strange)!r}")
            return cls(queue, key, task, args.encode(), ANY_RESULT, carried)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"the job cannot be read: {error}") from None

    def _facts(self) -> tuple[object, ...]:
        return (self.id, self._task, self.args, self.returns, self.carried)


AnyWireJob = WireJob[Any]
