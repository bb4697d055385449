"""Options of a job. Each is declared once, in `OptionArgs`. A call overrides the task, and the task overrides the
app."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Final, Literal, NamedTuple, TypedDict, cast, get_type_hints

import orjson
from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict as PydanticTypedDict

from fennelq import clock
from fennelq.errors import ConfigurationError
from fennelq.model import checks
from fennelq.model.checks import valid_name
from fennelq.model.dedupe import (
    HELD,
    OF_MODES,
    CallKey,
    OnDuplicate,
    check_key_given,
    check_mode,
    check_on_duplicate,
    check_together,
    check_wait,
)
from fennelq.model.job import Dedupe, Priority
from fennelq.model.limits import Key, Limit, Rate, check_fair_key, check_limit, check_rate
from fennelq.model.retry import RetryPolicy, policy_to_wire
from fennelq.model.units import TEN_YEARS, Seconds, epoch_ms, milliseconds, seconds
from fennelq.wording import suggestion

Check = Callable[[str, Any], object]
"""Called with the name of an option and its value; raises ConfigurationError when the value is not valid."""


def _unchanged(value: Any) -> Any:
    return value


class Option(NamedTuple):
    """The facts about an option. Its name, type and meaning are beside it in `OptionArgs`."""

    reader: Literal["client", "server", "worker"]
    """The part of fennelq that reads the option."""
    check: Check
    carried: str = ""
    """The name by which a job carries it, in schedules and in the outbox. For the server's options the default is the
    name of the option. Empty when jobs do not carry it."""
    letter: str = ""
    """Server: the field of the record. Worker: the name within the field of options."""
    sent: Callable[[Any], Any] = _unchanged
    """Returns the form in which a value is sent. A job does not carry a 0, or an empty text."""
    accepts: Any = None
    """Worker: the type of the sent value. The executor checks it, because any client may have sent it."""
    holds: str = ""
    """Server: the meaning of the field of the record."""
    shown: str = ""
    """Server: the attribute of JobInfo that shows it; empty when it is not shown."""
    read: Callable[[str], Any] = str
    """Server: turns the field of a record into that attribute."""


def _client(check: Check, carried: str = "", sent: Callable[[Any], Any] = _unchanged) -> Option:
    return Option("client", check, carried, sent=sent)


def _worker(letter: str, check: Check, accepts: Any, sent: Callable[[Any], Any] = _unchanged) -> Option:
    return Option("worker", check, letter=letter, sent=sent, accepts=accepts)


def _server(letter: str, check: Check, **more: Any) -> Option:
    return Option("server", check, letter=letter, **more)


_from_0, _from_1 = Field(ge=0), Field(ge=1)
_count = Annotated[int, _from_0]
_kept = Annotated[float, Field(ge=0, le=TEN_YEARS)]
_retry = _count | tuple[_count, str, list[float], bool]
_timeout = Annotated[float, Field(gt=0, le=TEN_YEARS)] | None


def moment(text: str) -> datetime | None:
    """A moment in a record; None for an empty text."""
    return clock.from_ms(int(text)) if text else None


class OptionArgs(TypedDict, total=False):
    """The options of the task decorators and of `options()`."""

    queue: Annotated[str, _client(valid_name)]
    """The queue of the job. Default: `default_queue`."""
    priority: Annotated[
        Priority, _client(checks.check_priority, "priority", lambda name: "" if name == "normal" else name)
    ]
    """The lane of the queue: high, normal or low."""
    delay: Annotated[Seconds, _client(checks.check_duration, "delay_ms", milliseconds)]
    """Seconds to wait before the job may start."""
    at: Annotated[datetime, _client(checks.check_moment, "at_ms", lambda at: max(1, epoch_ms(at)))]
    """The moment at which the job may start; a datetime with a time zone."""
    expires: Annotated[
        Seconds,
        _server(
            "E",
            checks.check_duration,
            carried="expires_ms",
            sent=milliseconds,
            holds="expires, server ms",
            shown="expires_at",
            read=moment,
        ),
    ]
    """Seconds after which a job that has not started is cancelled with reason `expired`."""
    retries: Annotated[int, _worker("r", checks.check_retries, _retry), _from_0]
    """Runs after the first. Default: `default_retries`."""
    retry: Annotated[RetryPolicy, _worker("r", checks.check_policy, _retry)]
    """How to retry; overrides `retries`."""
    timeout: Annotated[
        Seconds | None,
        _worker("t", checks.check_timeout, _timeout, lambda value: None if value is None else seconds(value)),
    ]
    """Seconds that a run may take, with its providers and middleware; None means no limit."""
    key: Annotated[
        CallKey, _client(check_key_given, "idempotency", lambda key: key if isinstance(key, str) else "")
    ]
    """Idempotency key: a further call with the same key gets the first job's handle. `dedupe.arguments()` makes it from
    the arguments."""
    ttl: Annotated[Seconds, _client(checks.check_duration, "window_ms", milliseconds)]
    """Seconds that `key` is held. Default: as long as the first job's record is kept."""
    dedupe: Annotated[
        Dedupe, _client(check_mode, "dedupe", lambda mode: "" if mode == "throttle" else HELD[mode])
    ]
    """How long `key` is held: until_start, until_done, throttle (for `ttl`), debounce or latest."""
    on_duplicate: Annotated[
        OnDuplicate,
        _client(check_on_duplicate, "duplicate", lambda how: "" if how == "return" else how),
    ]
    """What a call does whose `key` is held: return the first job's handle, raise DuplicateJob, or replace the arguments
    of the job that waits. Default: return."""
    wait: Annotated[Seconds, _client(check_wait, "wait_ms", milliseconds)]
    """Debounce: seconds from the last call to the start of the job."""
    max_wait: Annotated[Seconds, _client(check_wait, "max_wait_ms", milliseconds)]
    """Debounce: seconds from the first call after which the job is due at the latest. Default: no bound."""
    job_id: Annotated[str, _client(checks.check_job_id)]
    """The job's own key, given by the caller: its id is `queue:job_id`."""
    result_ttl: Annotated[Seconds, _worker("s", checks.check_duration, _kept, seconds)]
    """Seconds a result is kept; 0 keeps none. Default: `result_ttl`."""
    failure_ttl: Annotated[Seconds, _worker("f", checks.check_duration, _kept, seconds)]
    """Seconds the result of a failed job is kept. Default: `failure_ttl`."""
    max_deliveries: Annotated[
        int,
        _server(
            "M",
            checks.check_count,
            holds="deliveries allowed, when not the app's setting",
        ),
        _from_1,
    ]
    """Deliveries that may end in a crash before the job is dead. Default: `max_deliveries`."""
    concurrency: Annotated[Limit, _client(check_limit)]
    """How many of its jobs run at the same time: `Limit(1, key="account_id")`."""
    rate_limit: Annotated[Rate, _client(check_rate)]
    """How many of its jobs start per second or other time: `Rate("10/s")`."""
    fair_key: Annotated[Key, _client(check_fair_key)]
    """The parameter, or a function, by whose value jobs take turns: `"tenant_id"`."""
    headers: Annotated[Mapping[str, str], _worker("h", checks.check_headers, dict[str, str], dict)]
    """Small strings, sent with the job. Those of a call are merged with those of its task, and override them."""


def _declared() -> Mapping[str, Option]:
    hints = get_type_hints(OptionArgs, include_extras=True)
    options: dict[str, Option] = {name: hint.__metadata__[0] for name, hint in hints.items()}
    return {
        name: option._replace(carried=option.carried or name) if option.reader == "server" else option
        for name, option in options.items()
    }


OPTIONS: Final = _declared()
"""The table of options, in the order in which they are declared."""

CARRIED: Final = {name: option for name, option in OPTIONS.items() if option.carried}
FOR_WORKERS: Final = {name: option for name, option in OPTIONS.items() if option.reader == "worker"}


@dataclass(frozen=True, slots=True)
class Options:
    """The options given so far, checked."""

    given: OptionArgs = field(default_factory=OptionArgs)

    def __post_init__(self) -> None:
        for name, value in self.given.items():
            OPTIONS[name].check(name, value)
        if "at" in self.given and "delay" in self.given:
            raise ConfigurationError("delay and at exclude each other: pass only one")
        check_together(self.given)
        if "expires" in self.given:
            checks.check_can_start(
                milliseconds(self.given["expires"]),
                delay=milliseconds(self.given.get("delay", 0)),
                wait=milliseconds(self.given.get("wait", 0)),
            )

    def with_(self, more: Mapping[str, Any]) -> Options:
        """These options, overridden by `more`; raises ConfigurationError for a name that is not an option."""
        if strange := set(more) - set(OPTIONS):
            name = min(strange)
            raise ConfigurationError(f"unknown option {name!r}{suggestion(name, OPTIONS)}")
        # What belongs to the mode of the task does not belong to another mode of the call.
        kept = {
            name: value for name, value in self.given.items() if "dedupe" not in more or name not in OF_MODES
        }
        merged = {**kept, **more}
        if "headers" in self.given and isinstance(headers := more.get("headers"), Mapping):
            merged["headers"] = {**self.given["headers"], **headers}
        return Options(cast("OptionArgs", merged))

    def carried(self) -> dict[str, Any]:
        """The values that every call with these options carries, without those for the worker."""
        values: Mapping[str, Any] = self.given
        sent = {
            option.carried: option.sent(values[name]) for name, option in CARRIED.items() if name in values
        }
        return {name: value for name, value in sent.items() if value}

    def for_worker(self) -> dict[str, Any]:
        """The options that the worker reads, by letter. A retry policy is not encoded, because it may hold code."""
        values: Mapping[str, Any] = self.given
        sent = {
            option.letter: option.sent(values[name]) for name, option in FOR_WORKERS.items() if name in values
        }
        return {letter: value for letter, value in sent.items() if value != {}}

    def to_wire(self) -> bytes:
        """The options that the worker reads, as JSON; empty without any. Raises ConfigurationError when they cannot be
        sent."""
        wire = self.for_worker()
        if isinstance(policy := wire.get("r"), RetryPolicy):
            wire["r"] = policy_to_wire(policy)
        return orjson.dumps(wire) if wire else b""


@cache
def _wire() -> TypeAdapter[Mapping[str, Any]]:
    make: Any = PydanticTypedDict
    return TypeAdapter(
        make("WireOptions", {option.letter: option.accepts for option in FOR_WORKERS.values()}, total=False)
    )


def read_wire(raw: bytes) -> Mapping[str, Any]:
    """The options that came with a call, by letter; raises ValueError when they cannot be read."""
    try:
        return _wire().validate_json(raw, strict=True)
    except ValidationError as error:
        raise ValueError(f"the options of the job cannot be read: {error.errors()[0]['msg']}") from None
