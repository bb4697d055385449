"""Sends calls that arrive as JSON, from the HTTP API and from gRPC. They name their tasks, and are checked here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, NotRequired, cast, get_type_hints

from pydantic import AwareDatetime, ConfigDict, Field, TypeAdapter, ValidationError, with_config
from pydantic_core import from_json, to_json
from typing_extensions import TypedDict

from fennelq.broker import verbs
from fennelq.broker.keys import AppKeys, queue_keys
from fennelq.broker.talk import Talk, ask, ask_all
from fennelq.errors import (
    ConfigurationError,
    DuplicateJob,
    FennelqError,
    InvalidArguments,
    PayloadTooLarge,
    UnknownQueue,
    UnknownTask,
)
from fennelq.model.dedupe import CallKey, OnDuplicate
from fennelq.model.job import Dedupe, Priority, new_key
from fennelq.model.limits import Key, Limit, Rate
from fennelq.model.options import OptionArgs
from fennelq.model.retry import RetryPolicy
from fennelq.model.units import Seconds
from fennelq.model.wire import AnyWireJob
from fennelq.usage import job_given

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.result import AsyncResult
    from fennelq.task import AnyTask

DEEPEST: Final = 200
"""Levels of nesting in JSON; the parser refuses more."""
_STRICT = ConfigDict(extra="forbid", strict=True)
_Seconds = Annotated[float, Field(ge=0)]
_SecondsOrNone = _Seconds | None
_LONGEST_KEY: Final = 255
_DIGEST: Final = 24
"""Hexadecimal digits of the digest of a call that a job keeps."""


_AS_JSON: Final[Mapping[Any, Any]] = {
    Seconds: _Seconds,
    Seconds | None: _SecondsOrNone,
    datetime: Annotated[AwareDatetime, Field(strict=False)],
    CallKey: str,
    int: int,
    Mapping[str, str]: dict[str, str],
    str: str,
    Priority: Priority,
    Dedupe: Dedupe,
    OnDuplicate: OnDuplicate,
}
"""The type with which an option is declared, and its type in JSON."""
_HOLD_CODE: Final = (RetryPolicy, Limit, Rate, Key)
"""The types of the options that a caller without the code of the task cannot give."""


def given_options() -> Any:
    """The type of the options that a caller without the code of the task can give, for pydantic. It follows from the
    table of options, where each is declared once."""
    hints = get_type_hints(OptionArgs, include_extras=True)
    given = {name: _as_json(hint) for name, hint in hints.items() if hint.__origin__ not in _HOLD_CODE}
    make: Any = TypedDict
    return with_config(_STRICT)(make("GivenOptions", given, total=False))


def _as_json(hint: Any) -> Any:
    """The type in JSON of an option that is declared like this, with the same bounds."""
    _, *bounds = hint.__metadata__
    return Annotated[_AS_JSON[hint.__origin__], *bounds] if bounds else _AS_JSON[hint.__origin__]


if TYPE_CHECKING:
    GivenOptions = OptionArgs
else:
    GivenOptions = given_options()


@with_config(_STRICT)
class GivenCall(TypedDict):
    """A call of a task by its name."""

    task: str
    args: NotRequired[list[Any]]
    kwargs: NotRequired[dict[str, Any]]
    options: NotRequired[GivenOptions]


CALL: Final[TypeAdapter[GivenCall]] = TypeAdapter(GivenCall)


class Fault(NamedTuple):
    """One wrong value."""

    pointer: str
    """Where it is, as a JSON pointer: `/kwargs/user_id`."""
    detail: str


class NotJson(FennelqError):
    """A text is not JSON, or is nested too deeply."""


class WrongCall(FennelqError):
    """A call cannot be made of these values; `faults` lists what is wrong."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = list(faults)
        shown = "; ".join(f"{fault.pointer or 'the body'}: {fault.detail}" for fault in self.faults[:3])
        more = f"; and {len(self.faults) - 3} more" if len(self.faults) > 3 else ""
        super().__init__(shown + more)


class KeyReused(FennelqError):
    """An Idempotency-Key was sent before, with another call."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(
            f"this Idempotency-Key was sent before with another call, whose job is {job_id}: send the same call, or "
            "choose another key"
        )


class Described(NamedTuple):
    """A call that can be sent."""

    job: AnyWireJob
    digest: str
    """The digest of the call, when it came with an Idempotency-Key; otherwise empty."""


class Caller(NamedTuple):
    """The program that sends a call."""

    name: str
    key: str = ""
    """Its Idempotency-Key for this call; empty without one."""
    place: int | None = None
    """The place of the call among those that have this key together."""


def read_json(raw: bytes) -> Any:
    """The value of a JSON text. Raises NotJson, with the place of the error."""
    try:
        return from_json(raw, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        text = str(error)
        if "recursion" in text:
            raise NotJson(f"the JSON is nested too deeply: at most {DEEPEST} levels are read") from None
        raise NotJson(f"this is not JSON: {text[:200]}") from None


def read_call(given: object, where: str = "") -> GivenCall:
    """The call in a JSON value. Raises WrongCall, with the place of each wrong value."""
    try:
        return CALL.validate_python(given)
    except ValidationError as error:
        raise WrongCall(faults_in(error, where)) from None


def faults_in(error: ValidationError, where: str = "") -> list[Fault]:
    """What pydantic has found, with pointers."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return [Fault(where + pointer(one["loc"]), one["msg"]) for one in found[:20]]


def pointer(path: Sequence[int | str]) -> str:
    """A JSON pointer (RFC 6901)."""
    return "".join(f"/{str(part)[:100].replace('~', '~0').replace('/', '~1')}" for part in path)


def described(
    app: App, call: GivenCall, caller: Caller, where: Where, *, identified: bool = True
) -> Described:
    """The job of a call. Raises UnknownTask, InvalidArguments, WrongCall or PayloadTooLarge, before anything is
    sent. `identified`: a caller may repeat the call with the id of the job, and makes no second one."""
    task = app.tasks.get(call["task"])
    if task is None and app.tasks:
        raise UnknownTask(call["task"], app.tasks)
    options: Any = call.get("options", {})
    if caller.key and "job_id" in options:
        raise WrongCall(
            [Fault(f"{where.options}/job_id", "leave it out: the Idempotency-Key makes the id of the job")]
        )
    try:
        job = _job(app, task, call, options)
    except InvalidArguments as error:
        raise WrongCall([_fault_of(error, task, call, where)]) from None
    except ConfigurationError as error:
        name = next((name for name in options if str(error).startswith(name)), "")
        raise WrongCall([Fault(f"{where.options}/{name}" if name else where.task, str(error))]) from None
    if caller.key:
        return _keyed(job, call, caller, where)
    if not identified or "job_id" in options or _replaces(job):
        return Described(job, "")
    return Described(job.identified(job.key, job.key), "")


class Where(NamedTuple):
    """The places of the parts of a call in a body."""

    task: str = "/task"
    args: str = "/args"
    kwargs: str = "/kwargs"
    options: str = "/options"

    @classmethod
    def below(cls, place: str) -> Where:
        """In a call that is itself a part of the body."""
        return cls(*(place + part for part in cls()))


async def sent(app: App, described: Described) -> AsyncResult[Any]:
    """Send it. Raises KeyReused when its Idempotency-Key was sent before with another call."""
    if described.digest:
        (taken,) = await app.client.converse(claimed(app, [described]))
        if taken is not None:
            raise taken
    try:
        handle = await app.client.send(described.job)
    except DuplicateJob as error:
        raise explained(error, described) from None
    if handle.deduplicated and described.digest:
        (problem,) = await app.client.converse(of_other_calls(app, [described]))
        if problem is not None:
            raise problem
    return handle


def claimed(app: App, calls: Sequence[Described]) -> Talk[list[KeyReused | None]]:
    """Take the Idempotency-Keys of these calls for their queues; returns the error of each call whose key belongs to a
    job of another queue. The id of a job has the queue in it, so the scripts of a queue cannot see such a job."""
    keys, kept = AppKeys(app.namespace), app.settings.record_ms
    dated = any("at_ms" in one.job.carried for one in calls)
    now_ms = (yield from ask(verbs.server.now())) if dated else 0
    queues = yield from ask_all(
        verbs.requests.claim(keys, one.job.key, one.job.queue, kept + _due_in(one.job, now_ms))
        for one in calls
    )
    return [
        None if queue == one.job.queue else KeyReused(f"{queue}:{one.job.key}")
        for queue, one in zip(queues, calls, strict=True)
    ]


def _due_in(job: AnyWireJob, now_ms: int) -> int:
    """Milliseconds until the job is due."""
    at_ms = job.carried.get("at_ms")
    return max(0, int(job.carried.get("delay_ms", 0) if at_ms is None else at_ms - now_ms))


def explained(error: Exception, described: Described) -> Exception:
    """The error of a call that was not sent. With an Idempotency-Key, the id of the job is that of the key."""
    reused = isinstance(error, DuplicateJob) and error.key is None and described.digest
    return KeyReused(error.job_id) if reused and isinstance(error, DuplicateJob) else error


def of_other_calls(app: App, calls: Sequence[Described]) -> Talk[list[KeyReused | None]]:
    """The error of each call whose job exists already and was made by another call: the script compares the task and
    its arguments, and this the options."""
    nonces = yield from ask_all(
        verbs.jobs.nonce(queue_keys(app.namespace, one.job.queue), one.job.key) for one in calls
    )
    return [
        KeyReused(one.job.id) if nonce and not nonce.startswith(one.digest) else None
        for nonce, one in zip(nonces, calls, strict=True)
    ]


class KnownQueues:
    """The queues to which callers may send: those of the app's code, and those that exist in Redis. Otherwise a caller
    could make queues without end, which no worker serves."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._known = {app.settings.default_queue, *(task.queue for task in app.tasks.values())}

    async def check(self, queue: str | None, where: Where) -> None:
        """Raises WrongCall for a queue that does not exist."""
        if queue is None or queue in self._known:
            return
        names = await self._app.queues.names()
        if queue not in names:
            raise WrongCall(
                [Fault(f"{where.options}/queue", str(UnknownQueue(queue, {*self._known, *names})))]
            )
        self._known.add(queue)


def _job(app: App, task: AnyTask | None, call: GivenCall, options: Any) -> AnyWireJob:
    args, kwargs = call.get("args", []), call.get("kwargs", {})
    if task is None:
        return job_given("send", app.describe(call["task"], *args, _kwargs=kwargs, **options))
    raw = to_json([args, kwargs])
    if len(raw) > app.settings.max_payload_bytes:
        raise PayloadTooLarge(f"the arguments of {task.name}", len(raw), app.settings.max_payload_bytes)
    read, named = task.calls.decode(raw)
    chosen = task.options(**options) if options else task
    return job_given("send", chosen.job(*read, **named))


def _keyed(job: AnyWireJob, call: GivenCall, caller: Caller, where: Where) -> Described:
    if len(caller.key) > _LONGEST_KEY:
        raise WrongCall([Fault("", f"an Idempotency-Key has at most {_LONGEST_KEY} characters")])
    if _replaces(job):
        raise WrongCall(
            [
                Fault(
                    where.options,
                    "a call that replaces the arguments of a job that waits has no Idempotency-Key",
                )
            ]
        )
    words = [caller.name, caller.key, *([] if caller.place is None else [str(caller.place)])]
    key = hashlib.sha256("\0".join(words).encode("utf-8", "surrogatepass")).hexdigest()[:32]
    digest = hashlib.sha256(to_json(_sorted(call), inf_nan_mode="strings")).hexdigest()[:_DIGEST]
    return Described(job.identified(f"k{key}", f"{digest}{new_key()}"), digest)


def _sorted(value: Any) -> Any:
    """The same value, with the members of objects in an order."""
    if isinstance(value, dict):
        members = cast("Mapping[str, Any]", value)
        return {name: _sorted(members[name]) for name in sorted(members)}
    if isinstance(value, list):
        return [_sorted(one) for one in cast("Sequence[Any]", value)]
    return value


def _replaces(job: AnyWireJob) -> bool:
    return (
        job.carried.get("duplicate") == "replace"
        or job.carried.get("dedupe") == "^"
        or "wait_ms" in job.carried
    )


def _fault_of(error: InvalidArguments, task: AnyTask | None, call: GivenCall, where: Where) -> Fault:
    """The place of the argument that does not fit."""
    name = error.parameter
    if name is None:
        return Fault(where.kwargs, error.reason)
    if name not in call.get("kwargs", {}) and task is not None:
        places, rest = task.calls.places(len(call.get("args", [])))
        if name in places:
            return Fault(f"{where.args}/{places.index(name)}", error.reason)
        if name == rest:
            return Fault(where.args, error.reason)
    return Fault(where.kwargs + pointer([name]), error.reason)
