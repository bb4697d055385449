"""fennelq: asyncio-native jobs on Redis Streams.

app        App: settings, tasks, the way to Redis
task       what @app.task makes of a function
client     sends jobs; result, waiting: what became of them
dlq        the dead, and how to bring them back
schedules  recurring jobs, declared in code or made at run time
sync       all of it without an event loop
model/     what a job is: pure values and decisions
broker/    the only package that speaks Redis: verbs, scripts, links
worker/    runs jobs
cli/       the command line
embedded   a private server when none is configured
"""

from __future__ import annotations

from fennelq.app import App
from fennelq.context import JobContext, current_job
from fennelq.errors import (
    BrokerUnavailable,
    ConfigurationError,
    DuplicateJob,
    EnqueueFailed,
    FennelqError,
    InvalidArguments,
    InvalidJobId,
    JobCancelled,
    JobError,
    JobExpired,
    PayloadTooLarge,
    ResultExpired,
    ResultTimeout,
    TaskFailed,
    UnknownSchedule,
    UnknownTask,
    UnreadableSchedule,
    UsageError,
)
from fennelq.model.job import Job, JobInfo, Status
from fennelq.model.outcome import Reject, Retry, Snooze
from fennelq.model.retry import RetryPolicy
from fennelq.model.schedule import Schedule
from fennelq.result import AsyncResult, as_completed, gather, wait
from fennelq.schedules import ScheduleInfo
from fennelq.settings import Settings
from fennelq.task import Task

__all__ = [
    "App",
    "AsyncResult",
    "BrokerUnavailable",
    "ConfigurationError",
    "DuplicateJob",
    "EnqueueFailed",
    "FennelqError",
    "InvalidArguments",
    "InvalidJobId",
    "Job",
    "JobCancelled",
    "JobContext",
    "JobError",
    "JobExpired",
    "JobInfo",
    "PayloadTooLarge",
    "Reject",
    "ResultExpired",
    "ResultTimeout",
    "Retry",
    "RetryPolicy",
    "Schedule",
    "ScheduleInfo",
    "Settings",
    "Snooze",
    "Status",
    "Task",
    "TaskFailed",
    "UnknownSchedule",
    "UnknownTask",
    "UnreadableSchedule",
    "UsageError",
    "as_completed",
    "current_job",
    "gather",
    "wait",
]

__version__ = "0.1.0"
