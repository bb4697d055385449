"""A job as it is sent: with its encoded arguments, and the other values that it carries, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, Self, TypeVar, Unpack

import orjson

from fennelq.errors import ConfigurationError
from fennelq.model.checks import check_can_start
from fennelq.model.fields import KNOWN
from fennelq.model.job import Job, Priority
from fennelq.model.options import CARRIED, OPTIONS, OptionArgs, Options
from fennelq.model.result_codec import ANY_RESULT, ResultCodec

R_co = TypeVar("R_co", covariant=True)

NOTHING: Final[Mapping[str, Any]] = {}
_OF_THE_ID: Final = ("queue", "job_id")
_OF_THE_ARGUMENTS: Final = ("concurrency", "rate_limit", "fair_key")
_OF_DUPLICATES: Final = ("dedupe", "on_duplicate", "wait", "max_wait")
_WITH_DEDUPE: Final = ("key", "ttl")
_WITH_WAIT: Final = ("delay", "at")
_HEADERS: Final = OPTIONS["headers"]
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


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
    def headers(self) -> Mapping[str, str]:
        """The headers that this call carries."""
        if "options" not in self._carried:
            return _NO_HEADERS
        headers: Mapping[str, str] = self._for_worker().get(_HEADERS.letter, {})
        return MappingProxyType(headers)

    def with_headers(self, headers: Mapping[str, str], /) -> Self:
        """The same job, with these headers too."""
        # Not by `with_options`, which takes three times as long: a sender may do this for every job.
        _HEADERS.check("headers", headers)
        if not headers:
            return self
        for_worker, merged = self._for_worker(), headers
        if there := for_worker.get(_HEADERS.letter):
            merged = {**there, **headers}
            _HEADERS.check("headers", merged)
        for_worker[_HEADERS.letter] = merged if type(merged) is dict else {**merged}
        carried = {**self._carried, "options": orjson.dumps(for_worker).decode()}
        return type(self)(self._queue, self._key, self._task, self._args, self._returns, carried)

    def with_options(self, **options: Unpack[OptionArgs]) -> Self:
        """The same job, with other options; raises ConfigurationError for those that cannot be changed any more."""
        for name in _OF_THE_ID:
            if name in options:
                raise ConfigurationError(
                    f"{name}= is part of the id of {self!r}, which it keeps: "
                    f"write task.options({name}=…).job(…) to describe another job"
                )
        for name in _OF_THE_ARGUMENTS:
            if name in options:
                raise ConfigurationError(
                    f"{name}= is computed from the arguments, which {self!r} has encoded already: "
                    f"write task.options({name}=…).job(…) to describe another job"
                )
        self._check_duplicates(options)
        if "headers" in options:
            # Together they are checked as the headers of one call.
            Options({"headers": options["headers"]})
            options = {**options, "headers": {**self.headers, **options["headers"]}}
        given = Options().with_(options)
        return type(self)(
            self._queue, self._key, self._task, self._args, self._returns, self._carry(given) or NOTHING
        )

    def identified(self, key: str, nonce: str) -> Self:
        """The same call with this key as its id. `nonce` distinguishes a repeat of this call from another call with the
        same id."""
        carried = {**self._carried, "nonce": nonce}
        return type(self)(self._queue, key, self._task, self._args, self._returns, carried)

    def _check_duplicates(self, options: OptionArgs) -> None:
        """Raises ConfigurationError for options that would change what the job does about duplicates."""
        fixed = [*_OF_DUPLICATES]
        fixed += _WITH_DEDUPE if "dedupe" in self._carried or "duplicate" in self._carried else ()
        fixed += _WITH_WAIT if "wait_ms" in self._carried else ()
        for name in fixed:
            if name in options:
                raise ConfigurationError(
                    f"{name}= decides what becomes of duplicates, which {self!r} is described with: "
                    f"write task.options({name}=…).job(…) to describe another job"
                )
        if not isinstance(options.get("key", ""), str):
            raise ConfigurationError(
                f"key= is computed from the arguments, which {self!r} has encoded already: pass it as a text, or write "
                "task.options(key=…).job(…) to describe another job"
            )

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

    def _for_worker(self) -> dict[str, Any]:
        """The options that the worker reads, by letter."""
        options: str = self._carried.get("options", "")
        return orjson.loads(options) if options else {}

    def _carry(self, given: Options) -> dict[str, Any]:
        """All that the job carries once these options are given."""
        replaced = {CARRIED[name].carried for name in given.given if name in CARRIED}
        kept = {name: value for name, value in self._carried.items() if name not in replaced}
        carried = {**kept, **given.carried()}
        if "key" in given.given:
            carried["idempotency"] = f"{self._task}:{given.given['key']}"
        if "idempotency" not in carried:
            carried.pop("window_ms", None)
        if "at_ms" in carried and "delay_ms" in carried:
            raise ConfigurationError("delay and at exclude each other: the job has the other one already")
        check_can_start(
            carried.get("expires_ms", 0), delay=carried.get("delay_ms", 0), wait=carried.get("wait_ms", 0)
        )
        if for_worker := given.to_wire():
            carried["options"] = orjson.dumps({**self._for_worker(), **orjson.loads(for_worker)}).decode()
        return carried

    def _facts(self) -> tuple[object, ...]:
        return (self.id, self._task, self._args, self._returns, self._carried)


AnyWireJob = WireJob[Any]

key_task_args_carried: Callable[[AnyWireJob], tuple[str, str, bytes, Mapping[str, Any]]] = attrgetter(
    "_key", "_task", "_args", "_carried"
)
"""The parts of a job that every call sends, in one step: four properties take twice the time."""
