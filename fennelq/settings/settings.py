"""The settings: one model, filled from `[tool.fennelq]`, `FENNELQ_…`, keyword arguments of `App` and the command line.

All durations are in seconds. The groups below declare the type and the meaning of each setting, with its unit and the
effect of zero or None: an editor shows this text for a keyword of `App(…)`, and the reference page is made from it.
`Settings` has the defaults and the limits.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Literal, Self, TypedDict

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fennelq.broker.connection import address_of, masked
from fennelq.errors import ConfigurationError
from fennelq.model.checks import valid_name
from fennelq.model.secrets import rule_of
from fennelq.settings.conflicts import conflicts
from fennelq.settings.sources import PREFIX, HistoryUrl, from_environment, from_pyproject, refuse_unknown

LogFormat = Literal["auto", "console", "json"]
"""How log lines are written; `auto` is `console` on a terminal and `json` elsewhere."""
LogLevel = Literal["debug", "info", "warning", "error", "critical"]
"""The least severe level that is logged."""
LogErrors = Literal["type", "message", "traceback"]
LogConfig = Literal["fennelq", "none"]
MetricsBy = Literal["task", "queue"]

_LONGEST = 100 * 366 * 86400
"""Seconds. Redis would refuse a larger number, and only when a job ends."""
_LEAST_RECORD = 600
_TIMEOUTS_PER_RECORD = 3
"""The record of an ended job is kept for at least 600 seconds, and at least three times `enqueue_timeout`. While it
exists, a retry of delay() finds the job and creates no second one. After a lost reply, delay() itself retries for
`enqueue_timeout`, and its last attempt may reach Redis later still; callers that retry a BrokerUnavailable come later
than that. This is not a setting: the memory that a lower value could save is that of ten minutes of small records, and
a higher value is what `record_ttl` is for."""
_REDACTED_NAME = re.compile(r"[\w.-]{1,128}")
_LONGEST_BEAT = 900
"""Seconds. Other executors forget an executor that sends no heartbeat for an hour."""


class _Redis(TypedDict, total=False):
    """Redis"""

    redis_url: str | None
    """Where Redis is: redis://, rediss://, unix:// or embedded://. None uses embedded://, a private server."""
    namespace: str | None
    """First part of every key. None uses the app's name."""


class _Jobs(TypedDict, total=False):
    """Queues and jobs"""

    default_queue: str
    """Queue of tasks that do not name a queue."""
    default_retries: int
    """Runs after the first, for tasks that do not set `retries`. 0 never retries."""
    enqueue_timeout: float
    """Seconds that delay() tries to reach Redis before it raises BrokerUnavailable."""
    max_payload_bytes: int
    """Largest encoded call or result, in bytes."""
    max_deliveries: int
    """Deliveries that may end in a crash before a job is dead."""
    unknown_task_patience: float
    """Seconds that a job waits for a worker that has its task and its arguments. 0 makes it dead at once."""


class _Results(TypedDict, total=False):
    """Results and records"""

    result_ttl: float
    """Seconds that a result is kept. 0 keeps none; callers that wait already still get it."""
    failure_ttl: float
    """Seconds that the result of a failed job is kept. 0 keeps none."""
    record_ttl: float
    """Seconds that the record of an ended job is kept: never less than 600, 3 × enqueue_timeout, or its result."""
    history_url: str | None
    """Where the history is: sqlite:///folder/file (an absolute path) or postgresql://. None keeps no history."""


class _DeadLetters(TypedDict, total=False):
    """Dead-letter queues"""

    dlq_max_age: float
    """Seconds that a dead job is kept in the dead-letter queue."""
    dlq_max_len: int
    """Dead jobs kept per queue; the oldest are removed first. 0 keeps none."""


class _Context(TypedDict, total=False):
    """Context"""

    carry: list[str]
    """Names that are bound with `structlog.contextvars`. Jobs carry their values, which are bound where a job runs."""


class _Secrets(TypedDict, total=False):
    """Secrets"""

    redact: list[str]
    """Names of arguments and headers whose values no output shows, besides `password`, `token`, `card` and the like."""


class _Workers(TypedDict, total=False):
    """Workers"""

    processes: int | None
    """Executor processes of a worker. None uses the number of CPUs."""
    concurrency: int
    """Jobs an executor runs at the same time."""
    grace_period: float
    """Seconds that running jobs get to finish when a worker stops. 0 gives them none."""
    stop_grace: float
    """Seconds that a run may go on after it was asked to stop. Then its outcome is written, and its slot is stuck."""
    max_stuck: int | None
    """An executor with more stuck slots than this is replaced. None is half of its slots; 0 allows none."""
    stall_timeout: float
    """Seconds that an executor's loop may be blocked before the executor is replaced."""


class _Leases(TypedDict, total=False):
    """Leases"""

    lease: float
    """Seconds that an executor may be silent before other executors take its jobs."""
    heartbeat_interval: float | None
    """Seconds between two heartbeats, at most lease/3. None is lease/4, at most 900."""
    maintenance_interval: float | None
    """Seconds between two sweeps for jobs of dead executors, at most lease. None is lease/4."""


class _Schedules(TypedDict, total=False):
    """Delayed and recurring jobs"""

    schedule_interval: float
    """Seconds between looks for due jobs and ticks if messages cannot arrive; else heartbeat_interval, if longer."""


class _Metrics(TypedDict, total=False):
    """Metrics"""

    metrics_ttl: float
    """Seconds that the runs and the run and wait times of each task are kept in Redis, at least 1200. 0 writes none."""
    metrics: bool
    """Count runs and jobs sent for `fennelq.metrics`. A worker with --health-port counts them in any case."""
    metrics_by: MetricsBy
    """task counts each task by itself, up to 500; queue leaves out the label `task`."""


class _Logging(TypedDict, total=False):
    """Logging"""

    log_format: LogFormat
    """auto is console on a terminal and json elsewhere."""
    log_level: LogLevel
    """Least severe level that is logged."""
    log_errors: LogErrors
    """How much a worker logs of a task's error: its type; its type and message; or these and its traceback."""
    log_config: LogConfig
    """none configures no logging: fennelq's lines then go through the configuration of your code."""


class SettingArgs(
    _Redis,
    _Jobs,
    _Results,
    _DeadLetters,
    _Context,
    _Secrets,
    _Workers,
    _Leases,
    _Schedules,
    _Metrics,
    _Logging,
    total=False,
):
    """The settings as keyword arguments of `App`: [each with its meaning](settings.md)."""


class Settings(BaseModel):
    """All settings of an app, with the values from every source."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,  # the input may be a URL with a password
    )

    redis_url: str | None = None
    namespace: str | None = None

    default_queue: str = "default"
    default_retries: int = Field(3, ge=0)
    enqueue_timeout: float = Field(10, gt=0, le=_LONGEST)
    # Redis disconnects a subscriber whose unread messages exceed 32 MB: the message of a larger result would never
    # arrive.
    max_payload_bytes: int = Field(1 << 20, ge=1, le=1 << 24)
    max_deliveries: int = Field(4, ge=1)
    unknown_task_patience: float = Field(3600, ge=0, le=_LONGEST)

    result_ttl: float = Field(3600, ge=0, le=_LONGEST)
    failure_ttl: float = Field(86400, ge=0, le=_LONGEST)
    record_ttl: float = Field(86400, ge=0, le=_LONGEST)
    history_url: HistoryUrl = None

    dlq_max_age: float = Field(30 * 86400, gt=0, le=_LONGEST)
    dlq_max_len: int = Field(100_000, ge=0)

    carry: list[str] = []

    redact: list[str] = []

    processes: int | None = Field(None, ge=1)
    concurrency: int = Field(32, ge=1, le=10_000)
    grace_period: float = Field(25, ge=0, le=_LONGEST)
    stop_grace: float = Field(5, ge=0.01, le=_LONGEST)
    max_stuck: int | None = Field(None, ge=0)
    stall_timeout: float = Field(60, ge=1, le=_LONGEST)

    lease: float = Field(15, ge=1, le=86400)
    heartbeat_interval: float | None = Field(None, gt=0, le=_LONGEST_BEAT)
    maintenance_interval: float | None = Field(None, gt=0)

    schedule_interval: float = Field(1, gt=0, le=60)

    metrics_ttl: float = Field(86400, ge=0, le=_LONGEST)
    metrics: bool = False
    metrics_by: MetricsBy = "task"

    log_format: LogFormat = "auto"
    log_level: LogLevel = "info"
    log_errors: LogErrors = "traceback"
    log_config: LogConfig = "fennelq"

    @field_validator("redis_url")
    @classmethod
    def _is_understood(cls, url: str | None) -> str | None:
        # Checked here and not at the first connection, so that a wrong URL is found at once. A rediss://
        # URL is not checked here: its TLS context reads files, which an import should not do.
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
        # Masking does not change a valid name. An invalid one is quoted in the error, and may be a URL in the wrong
        # place.
        return None if name is None else valid_name(f"setting {info.field_name}: name", masked(name))

    @field_validator("carry", "redact", mode="before")
    @classmethod
    def _is_list(cls, names: object) -> object:
        # A variable of the environment is one text: FENNELQ_CARRY=request_id,user
        return (
            [name.strip() for name in names.split(",") if name.strip()] if isinstance(names, str) else names
        )

    @field_validator("carry")
    @classmethod
    def _are_names(cls, names: list[str]) -> list[str]:
        for place, name in enumerate(names):
            valid_name("setting carry: name", masked(name))
            if name in names[:place]:
                raise ConfigurationError(f"setting carry: {name!r} is there twice")
        return names

    @field_validator("redact")
    @classmethod
    def _have_words(cls, names: list[str]) -> list[str]:
        for name in names:
            if not rule_of(name) or not _REDACTED_NAME.fullmatch(name):
                raise ConfigurationError(
                    f"setting redact: name {masked(name)[:140]!r} is not valid: use letters, digits, _ . and -"
                )
        return names

    @model_validator(mode="after")
    def _work_together(self) -> Self:
        for problem in conflicts(self):
            raise ValueError(problem)
        return self

    @classmethod
    def load(cls, root: Path | None, **given: Any) -> Self:
        """Settings from every source, where later sources override earlier ones. ConfigurationError names each
        mistake."""
        variables = from_environment()
        refuse_unknown(f"the environment ({PREFIX}…)", variables, cls.model_fields)
        refuse_unknown("App(…)", given, cls.model_fields)
        table = from_pyproject(root)
        refuse_unknown("[tool.fennelq] in pyproject.toml", table, cls.model_fields)
        try:
            return cls(**{**table, **variables, **given})
        except (ValidationError, ConfigurationError) as error:
            sentence, name = _refusal(error)
            raise ConfigurationError(sentence + _origin(name, given, variables, table)) from None

    def __setattr__(self, name: str, value: Any) -> None:
        """Raises ValidationError, whose text quotes the value without its password."""
        super().__setattr__(name, masked(value) if isinstance(value, str) else value)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """The settings for repr() and str(), which must not show a password."""
        for name, value in super().__repr_args__():
            yield name, masked(value) if isinstance(value, str) else value

    @property
    def embedded(self) -> bool:
        """Whether a private server is used."""
        return self.redis_url is None or self.redis_url.startswith("embedded://")

    @property
    def record_ms(self) -> int:
        """The least time for which the record of an ended job is kept."""
        least = max(_LEAST_RECORD, _TIMEOUTS_PER_RECORD * self.enqueue_timeout)
        return round(max(self.record_ttl, least) * 1000)

    @property
    def beat(self) -> float:
        """Seconds between two heartbeats."""
        return self.heartbeat_interval or min(self.lease / 4, _LONGEST_BEAT)

    @property
    def maintenance(self) -> float:
        """Seconds between two sweeps for jobs of dead executors."""
        return self.maintenance_interval or self.lease / 4


def _refusal(error: ValidationError | ConfigurationError) -> tuple[str, str]:
    """The reason why a value was refused, and the name of its setting; no name when several settings conflict."""
    if isinstance(error, ConfigurationError):
        return str(error), str(error).removeprefix("setting ").partition(" ")[0].rstrip(":")
    first = error.errors(include_url=False)[0]
    if not first["loc"]:
        return first["msg"].removeprefix("Value error, "), ""
    name = str(first["loc"][0])
    # Masked for every setting, because a URL may have been set as the value of another setting by mistake.
    return masked(f"setting {'.'.join(map(str, first['loc']))}: {first['msg']}, got {first['input']!r}"), name


def _origin(name: str, *sources: Collection[str]) -> str:
    """The source of a refused setting. Empty for a keyword of `App(…)`, because the traceback shows that line."""
    places = ("", f" (from {PREFIX}{name.upper()})", " (from [tool.fennelq] in pyproject.toml)")
    return next((place for place, names in zip(places, sources, strict=True) if name in names), "")
