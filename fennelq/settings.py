"""Settings: one model, from `[tool.fennelq]`, `FENNELQ_…`, keyword arguments of `App` and the command line.

All durations are in seconds. Each field says its meaning, its unit and what zero does; the reference page is
made from it.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, Self, TypedDict

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from fennelq.broker.connection import address_of, masked
from fennelq.errors import ConfigurationError, suggestion
from fennelq.model.checks import valid_name

LogFormat = Literal["auto", "console", "json"]
LogLevel = Literal["debug", "info", "warning", "error", "critical"]
LogErrors = Literal["type", "message", "traceback"]
LogConfig = Literal["fennelq", "none"]

PREFIX = "FENNELQ_"
_OTHER_VARIABLES = {"FENNELQ_APP", "FENNELQ_CRASH", "FENNELQ_LEDGER"}
"""Variables with our prefix that are not settings."""
_CALLED_ELSEWHERE = {
    **dict.fromkeys(
        ("broker", "broker_url", "backend", "result_backend", "url", "dsn", "redis", "redis_uri"), "redis_url"
    ),
    "queue": "default_queue",
    "retries": "default_retries",
    "max_retries": "default_retries",
    "workers": "processes",
}
"""What other frameworks call a setting, and what it is called here: names that no typing error leads to."""
_OF_KUBERNETES = re.compile(
    r"""
    FENNELQ_ ([A-Z0-9_]+_)? (
      SERVICE_HOST = [0-9a-fA-F.:]+
    | SERVICE_PORT (_[A-Z0-9_]+)? = \d+
    | PORT (_\d+_(TCP|UDP|SCTP))? = (tcp|udp|sctp)://.+
    | PORT_\d+_(TCP|UDP|SCTP)_PROTO = (tcp|udp|sctp)
    | PORT_\d+_(TCP|UDP|SCTP)_PORT = \d+
    | PORT_\d+_(TCP|UDP|SCTP)_ADDR = [0-9a-fA-F.:]+
    )
    """,
    re.VERBOSE,
)
"""What Kubernetes puts into every container of a namespace for a service named `fennelq` or `fennelq-…`. The names end
as no setting's name does, and the values are part of the pattern: any other FENNELQ_…_PORT is a mistake."""

_LONGEST = 100 * 366 * 86400
"""Seconds: more would not fit into the numbers of Redis, which would refuse them only when a job ends."""
_LONGEST_BEAT = 900
"""Seconds: an executor that has told nothing of itself for an hour is forgotten."""


class SettingArgs(TypedDict, total=False):
    """The settings as keyword arguments of `App`; what each means is said below."""

    redis_url: str | None
    namespace: str | None
    default_queue: str
    default_retries: int
    result_ttl: float
    failure_ttl: float
    record_ttl: float
    tombstone_ttl: float
    enqueue_timeout: float
    dlq_max_age: float
    dlq_max_len: int
    processes: int | None
    concurrency: int
    lease: float
    heartbeat_interval: float | None
    maintenance_interval: float | None
    schedule_interval: float
    grace_period: float
    stop_grace: float
    max_stuck: int | None
    max_deliveries: int
    unknown_task_patience: float
    stall_timeout: float
    max_payload_bytes: int
    log_format: LogFormat
    log_level: LogLevel
    log_errors: LogErrors
    log_config: LogConfig


class Settings(BaseSettings):
    """Everything that can be set."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        extra="forbid",
        frozen=True,
        validate_default=False,
        allow_inf_nan=False,
        hide_input_in_errors=True,  # it may be a URL with a password
    )

    redis_url: str | None = Field(
        None,
        description="Where Redis is: redis://, rediss://, unix:// or embedded://. "
        "None uses embedded://, a private server.",
    )
    namespace: str | None = Field(None, description="First part of every key. None uses the app's name.")
    default_queue: str = Field("default", description="Queue of tasks that name none.")
    default_retries: int = Field(
        3, ge=0, description="Runs after the first, for tasks that do not say. 0 never retries."
    )
    result_ttl: float = Field(
        3600,
        ge=0,
        le=_LONGEST,
        description="Seconds a result is kept. 0 keeps none; waiting callers still get it.",
    )
    failure_ttl: float = Field(
        86400, ge=0, le=_LONGEST, description="Seconds the result of a failed job is kept. 0 keeps none."
    )
    record_ttl: float = Field(
        86400,
        ge=0,
        le=_LONGEST,
        description="Seconds a finished job's record is kept, never less than its result or tombstone_ttl.",
    )
    tombstone_ttl: float = Field(
        600,
        ge=0,
        le=_LONGEST,
        description="Seconds a finished job's record is kept at least. "
        "This or record_ttl exceeds twice enqueue_timeout.",
    )
    enqueue_timeout: float = Field(
        10, gt=0, le=_LONGEST, description="Seconds delay() tries to reach Redis before BrokerUnavailable."
    )
    dlq_max_age: float = Field(
        30 * 86400, gt=0, le=_LONGEST, description="Seconds a dead job is kept in the dead-letter queue."
    )
    dlq_max_len: int = Field(
        100_000, ge=0, description="Dead jobs kept per queue; the oldest go first. 0 keeps none."
    )
    processes: int | None = Field(
        None, ge=1, description="Executor processes of a worker. None uses the number of CPUs."
    )
    concurrency: int = Field(32, ge=1, le=10_000, description="Jobs an executor runs at the same time.")
    lease: float = Field(
        15, ge=1, le=86400, description="Seconds an executor may be silent before its jobs are taken from it."
    )
    heartbeat_interval: float | None = Field(
        None,
        gt=0,
        le=_LONGEST_BEAT,
        description="Seconds between two heartbeats, at most lease/3. None is lease/4, at most 900.",
    )
    maintenance_interval: float | None = Field(
        None,
        gt=0,
        description="Seconds between two sweeps for jobs of dead executors, at most lease. None is lease/4.",
    )
    schedule_interval: float = Field(
        1, gt=0, le=60, description="Seconds until due jobs are found when no message announced them."
    )
    grace_period: float = Field(
        25, ge=0, le=_LONGEST, description="Seconds running jobs are given when a worker stops. 0 gives none."
    )
    stop_grace: float = Field(
        5,
        ge=0.01,
        le=_LONGEST,
        description="Seconds a run that was asked to stop may take for it. After that, its slot counts as stuck.",
    )
    max_stuck: int | None = Field(
        None,
        ge=0,
        description="Stuck slots above which an executor is replaced. None is half of its slots; 0 is the first one.",
    )
    max_deliveries: int = Field(
        4, ge=1, description="Deliveries that may end in a crash before a job is dead."
    )
    unknown_task_patience: float = Field(
        3600,
        ge=0,
        le=_LONGEST,
        description="Seconds a job waits for a worker that knows its task and its arguments. 0 makes it dead at once.",
    )
    stall_timeout: float = Field(
        60,
        ge=1,
        le=_LONGEST,
        description="Seconds an executor's loop may be blocked before it is replaced.",
    )
    # Redis disconnects a subscriber to which it owes 32 MB, so the message of a larger result would never arrive.
    max_payload_bytes: int = Field(
        1 << 20, ge=1, le=1 << 24, description="Largest encoded call or result, in bytes."
    )
    log_format: LogFormat = Field("auto", description="auto is console on a terminal and json elsewhere.")
    log_level: LogLevel = Field("info", description="Least severe level that is logged.")
    log_errors: LogErrors = Field(
        "traceback",
        description="How much a worker logs of a task's error: its type, its message too, or its traceback too.",
    )
    log_config: LogConfig = Field(
        "fennelq",
        description="none configures no logging: fennelq's lines then go through what your code sets up.",
    )

    @field_validator("redis_url")
    @classmethod
    def _is_understood(cls, url: str | None) -> str | None:
        # Where it is written, not at the first connection. A context for TLS reads files, which an import should not.
        if url is not None and url.startswith("embedded://"):
            folder = url.removeprefix("embedded://")
            if folder and not folder.startswith("/"):
                raise ConfigurationError(
                    f"redis_url {url!r} names a relative directory: write embedded:///{folder}, with three slashes, "
                    "for /" + folder
                )
        elif url is not None and not url.startswith("rediss://"):
            address_of(url)
        return url

    @field_validator("namespace", "default_queue")
    @classmethod
    def _is_name(cls, name: str | None, info: ValidationInfo) -> str | None:
        # Masking changes no valid name; the refusal quotes the others, which may be a URL in the wrong place.
        return None if name is None else valid_name(f"setting {info.field_name}: name", masked(name))

    @model_validator(mode="after")
    def _work_together(self) -> Self:
        for problem in _conflicts(self):
            raise ValueError(problem)
        return self

    @classmethod
    def load(cls, root: Path | None, **given: Any) -> Self:
        """Settings from every source, the later over the earlier; ConfigurationError names what is wrong."""
        _refuse_unknown(f"the environment ({PREFIX}…)", _from_environment(), cls)
        _refuse_unknown("App(…)", given, cls)
        table = _from_pyproject(root)
        _refuse_unknown("[tool.fennelq] in pyproject.toml", table, cls)
        try:
            return cls(**{**table, **EnvSettingsSource(cls)(), **given})
        except ValidationError as error:
            raise ConfigurationError(_sentence(error)) from None

    def __setattr__(self, name: str, value: Any) -> None:
        """Raises ValidationError; it quotes the value, without its password."""
        super().__setattr__(name, masked(value) if isinstance(value, str) else value)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """For repr() and str(), which must not show a password."""
        for name, value in super().__repr_args__():
            yield name, masked(value) if isinstance(value, str) else value

    @property
    def embedded(self) -> bool:
        """Whether a private server is used."""
        return self.redis_url is None or self.redis_url.startswith("embedded://")

    @property
    def record_ms(self) -> int:
        """How long a finished job's record lives at least."""
        return max(1, round(max(self.record_ttl, self.tombstone_ttl) * 1000))

    @property
    def beat(self) -> float:
        """Seconds between two heartbeats."""
        return self.heartbeat_interval or min(self.lease / 4, _LONGEST_BEAT)

    @property
    def maintenance(self) -> float:
        """Seconds between two sweeps for jobs of dead executors."""
        return self.maintenance_interval or self.lease / 4


def _conflicts(settings: Settings) -> Iterator[str]:
    """Values that are fine alone, and together would silently disable a mechanism."""
    lease = settings.lease
    # An executor sweeps only while its last heartbeat is younger than half a lease; a sixth is left for the round trip.
    if settings.beat > lease / 3:
        yield (
            f"setting heartbeat_interval: {settings.beat:g} s is too long for lease, {lease:g} s: "
            "executors would never take over the jobs of one that died. "
            f"It may be at most a third of lease, {_down(lease / 3)} s: lower heartbeat_interval or raise lease"
        )
    if settings.maintenance > lease:
        yield (
            f"setting maintenance_interval: {settings.maintenance:g} s is longer than lease, {lease:g} s: "
            "the jobs of a dead executor would wait for more than two leases. "
            f"It may be at most lease, {lease:g} s: lower maintenance_interval or raise lease"
        )
    kept = max(settings.record_ttl, settings.tombstone_ttl)
    if kept <= 2 * settings.enqueue_timeout:
        yield (
            f"setting tombstone_ttl: {settings.tombstone_ttl:g} s is too short for enqueue_timeout, "
            f"{settings.enqueue_timeout:g} s: a call that is sent again after a lost reply would make a second job "
            "when the record of the first is gone. tombstone_ttl or record_ttl must be more than twice "
            f"enqueue_timeout, {2 * settings.enqueue_timeout:g} s: raise tombstone_ttl or lower enqueue_timeout"
        )

    if settings.max_stuck is not None and settings.max_stuck >= settings.concurrency:
        yield (
            f"setting max_stuck: {settings.max_stuck} is not below concurrency, {settings.concurrency}: an executor "
            "whose slots are all stuck would never be replaced. "
            f"It may be at most {settings.concurrency - 1}: lower max_stuck or raise concurrency"
        )


def _down(seconds: float) -> str:
    """A largest allowed value that is still allowed as it is written."""
    return f"{math.floor(seconds * 1000) / 1000:g}"


def _from_pyproject(root: Path | None) -> dict[str, Any]:
    path = root / "pyproject.toml" if root else None
    if path is None or not path.is_file():
        return {}
    try:
        tool: Any = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {})
        table = dict(tool.get("fennelq", {}))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None
    except (AttributeError, TypeError, ValueError):
        raise ConfigurationError(f"{path} cannot be read: [tool.fennelq] must be a table") from None
    table.pop("app", None)
    return table


def _from_environment() -> dict[str, str]:
    return {
        name[len(PREFIX) :].lower(): value
        for name, value in os.environ.items()
        if name.startswith(PREFIX)
        and name not in _OTHER_VARIABLES
        and not _OF_KUBERNETES.fullmatch(f"{name}={value}")
    }


def _refuse_unknown(where: str, said: dict[str, Any], model: type[BaseSettings]) -> None:
    for name in said:
        if name not in model.model_fields:
            meant = _CALLED_ELSEWHERE.get(name.lower())
            hint = f": did you mean {meant!r}?" if meant else suggestion(name, model.model_fields)
            raise ConfigurationError(f"{where}: unknown setting {name!r}{hint}")


def _sentence(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    if not first["loc"]:
        return first["msg"].removeprefix("Value error, ")
    # Masked whatever the setting is: a URL may have been given as the value of another one.
    return masked(f"setting {'.'.join(map(str, first['loc']))}: {first['msg']}, got {first['input']!r}")
