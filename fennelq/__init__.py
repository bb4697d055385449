"""fennelq: asyncio-native jobs on Redis Streams.

app        App: settings, tasks, the way to Redis
task       tasks: functions whose calls can be sent; declaring/, declaration: how a function becomes one
client     sends jobs; result, waiting/: return how they ended, and why a job has not ended yet
middleware senders and performers; subscribers: functions for events; plugin: all of these in one value
dedupe     keys that are computed from arguments; carry: texts of context variables that travel with jobs
injection/ parameters that a worker fills: Depends, Shared, overrides, the lifespan
executors  the facts that executors report: which are alive, which queues they serve
sync/      all of it without an event loop; blocking: app.sync
settings/  what can be set, and where it comes from
manage/    for operators: jobs, queues, dead jobs, schedules, executors
model/     the values that describe jobs, and pure decisions
broker/    the only package that communicates with Redis: verbs, scripts, links
worker/    runs jobs
cli/       the command line
testing/   an app under test, on a real server; pytest_fennelq: its pytest plugin
embedded   a private server when none is configured; later: names that are imported when they are first used
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fennelq.app import App
from fennelq.context import BlockingJobContext, JobContext, current_job
from fennelq.declaring.registering import TaskDecorator
from fennelq.errors import (
    BrokerUnavailable,
    ConfigurationError,
    DuplicateJob,
    EnqueueFailed,
    ExecutorUnavailable,
    FennelqError,
    HistoryRefused,
    HistoryUnavailable,
    ImportRefused,
    InvalidArguments,
    InvalidFilter,
    InvalidJobId,
    JobCancelled,
    JobError,
    JobExpired,
    OperationBusy,
    PayloadTooLarge,
    QueueFull,
    QueuePaused,
    ReplayRefused,
    ResultExpired,
    ResultTimeout,
    TaskFailed,
    UnknownArgument,
    UnknownExecutor,
    UnknownLimit,
    UnknownOperation,
    UnknownQueue,
    UnknownSchedule,
    UnknownTask,
    UnreadableSchedule,
    UsageError,
)
from fennelq.injection.markers import Depends, Shared, injected
from fennelq.model.bounds import WhenFull
from fennelq.model.dedupe import OnDuplicate
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
from fennelq.model.job import Dedupe, Event, Job, JobFailure, JobInfo, Priority, Status
from fennelq.model.limits import Limit, Rate
from fennelq.model.options import OptionArgs
from fennelq.model.outcome import RateLimited, Reject, Retry, Snooze
from fennelq.model.pause import QueuePause, QueueSide
from fennelq.model.progress import Progress
from fennelq.model.retry import Curve, RetryPolicy
from fennelq.model.schedule import Overlap, Schedule, ScheduledArgs, When
from fennelq.model.secrets import Secret
from fennelq.model.times import Times
from fennelq.model.units import Seconds
from fennelq.plugin import Plugin, PluginMaker
from fennelq.result import AsyncResult
from fennelq.settings.settings import LogFormat, LogLevel, SettingArgs, Settings
from fennelq.subscribers import EventDecorator
from fennelq.task import AsyncTask, Task, ThreadTask

if TYPE_CHECKING:
    from fennelq.blocking import BlockingApp
    from fennelq.gathering import as_completed, gather, wait
    from fennelq.manage.acting import Act
    from fennelq.manage.audit import (
        Audit,
        AuditedOperation,
        AwaitedOperation,
        BlockingAudit,
        BlockingOperation,
    )
    from fennelq.manage.audit_entry import AuditEntry, AuditState
    from fennelq.manage.dead.dead import BlockingDeadLetters, DeadLetters, Order
    from fennelq.manage.dead.importing import ImportReport
    from fennelq.manage.dead.letter import DeadLetter, Group, ReplayReport
    from fennelq.manage.dead.new_arguments import NewArguments
    from fennelq.manage.dead.plan import ReplayPlan
    from fennelq.manage.dead.search import Filters, Moment
    from fennelq.manage.executors.executors import BlockingExecutors, Executors
    from fennelq.manage.executors.info import BlockedLoop, ExecutorInfo, ExecutorStacks, LongestRun, Stack
    from fennelq.manage.executors.profile import ExecutorProfile, ProfiledCall, ProfiledStack, ProfiledTask
    from fennelq.manage.finding import OnSearch, SearchProgress
    from fennelq.manage.history.looking import BlockingHistory, History
    from fennelq.manage.history.store import HistoryBucket, HistoryStats
    from fennelq.manage.jobs import BlockingJobs, JobAnswer, JobEnd, Jobs
    from fennelq.manage.limits import BlockingLimits, LimitInfo, LimitKind, Limits
    from fennelq.manage.operations import BlockingOperations, OperationInfo, OperationPlan, Operations
    from fennelq.manage.queues.info import QueueInfo
    from fennelq.manage.queues.queue import BlockingQueue, Queue
    from fennelq.manage.queues.queues import BlockingQueues, OnProgress, Place, Queues
    from fennelq.manage.running import RunningJob
    from fennelq.manage.schedules import BlockingSchedules, ScheduleInfo, Schedules
    from fennelq.manage.times import BlockingRunTimes, RunMinute, RunTimes, TaskTimes
    from fennelq.model.happened import StoryLine
    from fennelq.model.runs import StoryRun
    from fennelq.model.story import Story
    from fennelq.sync.sync import BlockingResult, BlockingTask

__all__ = [
    "Act",
    "AnyEvent",
    "App",
    "AsyncResult",
    "AsyncTask",
    "Audit",
    "AuditEntry",
    "AuditState",
    "AuditedOperation",
    "AwaitedOperation",
    "BlockedLoop",
    "BlockingApp",
    "BlockingAudit",
    "BlockingDeadLetters",
    "BlockingExecutors",
    "BlockingHistory",
    "BlockingJobContext",
    "BlockingJobs",
    "BlockingLimits",
    "BlockingOperation",
    "BlockingOperations",
    "BlockingQueue",
    "BlockingQueues",
    "BlockingResult",
    "BlockingRunTimes",
    "BlockingSchedules",
    "BlockingTask",
    "BrokerUnavailable",
    "ConfigurationError",
    "Curve",
    "DeadLetter",
    "DeadLetters",
    "Dedupe",
    "Depends",
    "DuplicateJob",
    "EnqueueFailed",
    "Event",
    "EventDecorator",
    "ExecutorInfo",
    "ExecutorProfile",
    "ExecutorStacks",
    "ExecutorStarted",
    "ExecutorStopped",
    "ExecutorUnavailable",
    "Executors",
    "FennelqError",
    "Filters",
    "Group",
    "History",
    "HistoryBucket",
    "HistoryRefused",
    "HistoryStats",
    "HistoryUnavailable",
    "ImportRefused",
    "ImportReport",
    "InvalidArguments",
    "InvalidFilter",
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
    "Limit",
    "LimitInfo",
    "LimitKind",
    "Limits",
    "LogFormat",
    "LogLevel",
    "LongestRun",
    "Moment",
    "NewArguments",
    "OnDuplicate",
    "OnProgress",
    "OnSearch",
    "OperationBusy",
    "OperationInfo",
    "OperationPlan",
    "Operations",
    "OptionArgs",
    "Order",
    "Overlap",
    "PayloadTooLarge",
    "Place",
    "Plugin",
    "PluginMaker",
    "Priority",
    "ProfiledCall",
    "ProfiledStack",
    "ProfiledTask",
    "Progress",
    "Queue",
    "QueueFull",
    "QueueInfo",
    "QueuePause",
    "QueuePaused",
    "QueueSide",
    "Queues",
    "Rate",
    "RateLimited",
    "Reject",
    "ReplayPlan",
    "ReplayRefused",
    "ReplayReport",
    "ResultExpired",
    "ResultTimeout",
    "Retry",
    "RetryPolicy",
    "RunMinute",
    "RunTimes",
    "RunningJob",
    "Schedule",
    "ScheduleInfo",
    "ScheduledArgs",
    "Schedules",
    "SearchProgress",
    "Seconds",
    "Secret",
    "SettingArgs",
    "Settings",
    "Shared",
    "Snooze",
    "Stack",
    "Status",
    "Story",
    "StoryLine",
    "StoryRun",
    "Task",
    "TaskDecorator",
    "TaskFailed",
    "TaskTimes",
    "ThreadTask",
    "Times",
    "UnknownArgument",
    "UnknownExecutor",
    "UnknownLimit",
    "UnknownOperation",
    "UnknownQueue",
    "UnknownSchedule",
    "UnknownTask",
    "UnreadableSchedule",
    "UsageError",
    "When",
    "WhenFull",
    "as_completed",
    "current_job",
    "gather",
    "injected",
    "wait",
]

__version__ = "0.1.0"

if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept names that do not exist

    def __getattr__(name: str) -> object:
        from importlib import import_module

        from fennelq.later import LATER

        for module, names in LATER.items():
            if name in names:
                value = globals()[name] = getattr(import_module(module), name)
                return value
        raise AttributeError(f"module 'fennelq' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
