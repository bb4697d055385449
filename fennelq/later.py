"""The public names that are imported when they are first used, by module: most programs never use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LATER: Final[Mapping[str, tuple[str, ...]]] = {
    "fennelq.blocking": ("BlockingApp",),
    "fennelq.gathering": ("as_completed", "gather", "wait"),
    "fennelq.manage.acting": ("Act",),
    "fennelq.manage.audit": (
        "Audit",
        "AuditedOperation",
        "AwaitedOperation",
        "BlockingAudit",
        "BlockingOperation",
    ),
    "fennelq.manage.audit_entry": ("AuditEntry", "AuditState"),
    "fennelq.manage.dead.dead": ("BlockingDeadLetters", "DeadLetters", "Order"),
    "fennelq.manage.dead.letter": ("DeadLetter", "Group", "ReplayReport"),
    "fennelq.manage.history.looking": ("BlockingHistory", "History"),
    "fennelq.manage.history.store": ("HistoryBucket", "HistoryStats"),
    "fennelq.manage.dead.importing": ("ImportReport",),
    "fennelq.manage.executors.info": ("BlockedLoop", "ExecutorInfo", "ExecutorStacks", "LongestRun", "Stack"),
    "fennelq.manage.executors.profile": ("ExecutorProfile", "ProfiledCall", "ProfiledStack", "ProfiledTask"),
    "fennelq.manage.executors.executors": ("BlockingExecutors", "Executors"),
    "fennelq.manage.jobs": ("BlockingJobs", "JobAnswer", "JobEnd", "Jobs"),
    "fennelq.manage.limits": ("BlockingLimits", "LimitInfo", "LimitKind", "Limits"),
    "fennelq.manage.dead.new_arguments": ("NewArguments",),
    "fennelq.manage.finding": ("OnSearch", "SearchProgress"),
    "fennelq.manage.operations": ("BlockingOperations", "OperationInfo", "OperationPlan", "Operations"),
    "fennelq.manage.queues.queue": ("BlockingQueue", "Queue"),
    "fennelq.manage.queues.info": ("QueueInfo",),
    "fennelq.manage.queues.queues": ("BlockingQueues", "OnProgress", "Place", "Queues"),
    "fennelq.manage.running": ("RunningJob",),
    "fennelq.manage.dead.plan": ("ReplayPlan",),
    "fennelq.manage.schedules": ("BlockingSchedules", "ScheduleInfo", "Schedules"),
    "fennelq.manage.dead.search": ("Filters", "Moment"),
    "fennelq.manage.times": ("BlockingRunTimes", "RunMinute", "RunTimes", "TaskTimes"),
    "fennelq.model.happened": ("StoryLine",),
    "fennelq.model.runs": ("StoryRun",),
    "fennelq.model.story": ("Story",),
    "fennelq.sync.sync": ("BlockingResult", "BlockingTask"),
}
