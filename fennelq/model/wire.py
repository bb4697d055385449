"""A job as it is sent: with its encoded arguments, and the other values that it carries, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
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
    __slots__ = ("_args", "_carried", "_returns")

    def __init__(
        self,
        queue: str,
        key: str,
        task: str,
        args: bytes,
        returns: ResultCodec[R_co],
        carried: Mapping[str, Any] = NOTHING,
    ) -> None:
        # Without `super().__init__`, which refuses the calls of users.
        self._queue, self._key, self._task = queue, key, task
        self._args, self._returns, self._carried = args, returns, carried

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WireJob) and self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def args(self) -> bytes:
        """Its arguments, encoded."""
        return self._args

    @property
    def returns(self) -> ResultCodec[R_co]:
        """Decodes its result."""
        return self._returns

    @property
    def carried(self) -> Mapping[str, Any]:
        """Values that most calls do not have, by the names of the table of fields. All calls of a task share one
        mapping."""
        return self._carried

    @property
    def priority(self) -> Priority:
        """Its lane of the queue."""
        priority: Priority = self._carried.get("priority", "normal")
        return priority

    @property
    def size(self) -> int:
        """The approximate number of bytes of the job on the wire."""
        size = len(self._args) + 100
        if self._carried:
            options: str = self._carried.get("options", "")
            # Python knows of each text whether it is ASCII: only other texts have to be encoded to be measured.
            size += len(options) if options.isascii() else len(options.encode())
        return size

    def to_wire(self) -> bytes:
        """The job as JSON, to be handed over. Default values are left out, so that an older version can read it."""
        return orjson.dumps(
            {
                "queue": self._queue,
                "key": self._key,
                "task": self._task,
                "args": self._args.decode(),
                **self._carried,
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
        return (self.id, self._task, self._args, self._returns, self._carried)


AnyWireJob = WireJob[Any]

key_task_args_carried: Callable[[AnyWireJob], tuple[str, str, bytes, Mapping[str, Any]]] = attrgetter(
    "_key", "_task", "_args", "_carried"
)
"""The parts of a job that every call sends, in one step: four properties take twice the time."""
