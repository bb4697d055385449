"""fennelq: asyncio-native jobs on Redis Streams.

app        App: settings, tasks, the way to Redis
task       tasks: functions whose calls can be sent; registering, declaration: how a function becomes one
client     sends jobs; result, waiting, looks: return how they ended; reasons: why a job has not ended yet
declared   the schedules of the code
middleware senders and performers; subscribers: functions for events; plugin: all of these in one value
carry      texts of context variables that travel with jobs
injection/ parameters that a worker fills: Depends, Shared, overrides, the lifespan
executors  the facts that executors report: which are alive, which queues they serve
sync       all of it without an event loop; sync_waiting: how it waits; blocking: app.sync
manage/    for operators: jobs, queues, dead jobs, schedules, executors
model/     the values that describe jobs, and pure decisions
broker/    the only package that communicates with Redis: verbs, scripts, links
worker/    runs jobs
cli/       the command line
testing/   an app under test, on a real server; pytest_fennelq: its pytest plugin
embedded   a private server when none is configured
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fennelq.app import App
from fennelq.context import BlockingJobContext, JobContext, current_job
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
    UnknownArgument,
    UnknownSchedule,
    UnknownTask,
    UnreadableSchedule,
    UsageError,
)
from fennelq.injection.markers import Depends, Shared, injected
from fennelq.model.events import (
    AnyEvent,
    ExecutorStarted,
    ExecutorStopped,
    JobDied,
    JobFinished,
    JobRetried,
    JobSent,
    JobStarted,
    JobStopped,
    LeaseLost,
)
from fennelq.model.job import Event, Job, JobFailure, JobInfo, Priority, Status
from fennelq.model.options import OptionArgs
from fennelq.model.outcome import Reject, Retry, Snooze
from fennelq.model.progress import Progress
from fennelq.model.retry import Curve, RetryPolicy
from fennelq.model.schedule import Overlap, Schedule, ScheduledArgs, When
from fennelq.model.units import Seconds
from fennelq.plugin import Plugin
from fennelq.registering import TaskDecorator
from fennelq.result import AsyncResult
from fennelq.settings import LogFormat, LogLevel, SettingArgs, Settings
from fennelq.subscribers import EventDecorator
from fennelq.task import AsyncTask, Task, ThreadTask

if TYPE_CHECKING:
    from fennelq.blocking import BlockingApp
    from fennelq.gathering import as_completed, gather, wait
    from fennelq.manage.dead import BlockingDeadLetters, DeadLetters, Order
    from fennelq.manage.dead_letter import DeadLetter, Group, ReplayReport
    from fennelq.manage.executors import BlockingExecutors, ExecutorInfo, Executors
    from fennelq.manage.jobs import BlockingJobs, JobAnswer, JobEnd, Jobs
    from fennelq.manage.queues import BlockingQueues, OnProgress, Place, QueueInfo, Queues
    from fennelq.manage.schedules import BlockingSchedules, ScheduleInfo, Schedules
    from fennelq.manage.search import Filters, Moment
    from fennelq.sync import BlockingResult, BlockingTask

__all__ = [
    "AnyEvent",
    "App",
    "AsyncResult",
    "AsyncTask",
    "BlockingApp",
    "BlockingDeadLetters",
    "BlockingExecutors",
    "BlockingJobContext",
    "BlockingJobs",
    "BlockingQueues",
    "BlockingResult",
    "BlockingSchedules",
    "BlockingTask",
    "BrokerUnavailable",
    "ConfigurationError",
    "Curve",
    "DeadLetter",
    "DeadLetters",
    "Depends",
    "DuplicateJob",
    "EnqueueFailed",
    "Event",
    "EventDecorator",
    "ExecutorInfo",
    "ExecutorStarted",
    "ExecutorStopped",
    "Executors",
    "FennelqError",
    "Filters",
    "Group",
    "InvalidArguments",
    "InvalidJobId",
    "Job",
    "JobAnswer",
    "JobCancelled",
    "JobContext",
    "JobDied",
    "JobEnd",
    "JobError",
    "JobExpired",
    "JobFailure",
    "JobFinished",
    "JobInfo",
    "JobRetried",
    "JobSent",
    "JobStarted",
    "JobStopped",
    "Jobs",
    "LeaseLost",
    "LogFormat",
    "LogLevel",
    "Moment",
    "OnProgress",
    "OptionArgs",
    "Order",
    "Overlap",
    "PayloadTooLarge",
    "Place",
    "Plugin",
    "Priority",
    "Progress",
    "QueueInfo",
    "Queues",
    "Reject",
    "ReplayReport",
    "ResultExpired",
    "ResultTimeout",
    "Retry",
    "RetryPolicy",
    "Schedule",
    "ScheduleInfo",
    "ScheduledArgs",
    "Schedules",
    "Seconds",
    "SettingArgs",
    "Settings",
    "Shared",
    "Snooze",
    "Status",
    "Task",
    "TaskDecorator",
    "TaskFailed",
    "ThreadTask",
    "UnknownArgument",
    "UnknownSchedule",
    "UnknownTask",
    "UnreadableSchedule",
    "UsageError",
    "When",
    "as_completed",
    "current_job",
    "gather",
    "injected",
    "wait",
]

__version__ = "0.1.0"

_LATER = {
    "fennelq.blocking": ("BlockingApp",),
    "fennelq.gathering": ("as_completed", "gather", "wait"),
    "fennelq.manage.dead": ("BlockingDeadLetters", "DeadLetters", "Order"),
    "fennelq.manage.dead_letter": ("DeadLetter", "Group", "ReplayReport"),
    "fennelq.manage.executors": ("BlockingExecutors", "ExecutorInfo", "Executors"),
    "fennelq.manage.jobs": ("BlockingJobs", "JobAnswer", "JobEnd", "Jobs"),
    "fennelq.manage.queues": (
        "BlockingQueues",
        "OnProgress",
        "Place",
        "QueueInfo",
        "Queues",
    ),
    "fennelq.manage.schedules": (
        "BlockingSchedules",
        "ScheduleInfo",
        "Schedules",
    ),
    "fennelq.manage.search": ("Filters", "Moment"),
    "fennelq.sync": (
        "BlockingResult",
        "BlockingTask",
    ),
}
"""The names that are imported when they are first used, by module: most programs never use them."""

if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept names that do not exist

    def __getattr__(name: str) -> object:
        from importlib import import_module

        for module, names in _LATER.items():
            if name in names:
                value = globals()[name] = getattr(import_module(module), name)
                return value
        raise AttributeError(f"module 'fennelq' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
