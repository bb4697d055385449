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
    "fennelq.manage.dead": ("BlockingDeadLetters", "DeadLetters", "Order"),
    "fennelq.manage.dead_letter": ("DeadLetter", "Group", "ReplayReport"),
    "fennelq.manage.history.looking": ("BlockingHistory", "History"),
    "fennelq.manage.history.store": ("HistoryBucket", "HistoryStats"),
    "fennelq.manage.importing": ("ImportReport",),
    "fennelq.manage.executor_info": ("BlockedLoop", "ExecutorInfo", "ExecutorStacks", "LongestRun", "Stack"),
    "fennelq.manage.executor_profile": ("ExecutorProfile", "ProfiledCall", "ProfiledStack", "ProfiledTask"),
    "fennelq.manage.executors": ("BlockingExecutors", "Executors"),
    "fennelq.manage.jobs": ("BlockingJobs", "JobAnswer", "JobEnd", "Jobs"),
    "fennelq.manage.limits": ("BlockingLimits", "LimitInfo", "LimitKind", "Limits"),
    "fennelq.manage.new_arguments": ("NewArguments",),
    "fennelq.manage.finding": ("OnSearch", "SearchProgress"),
    "fennelq.manage.operations": ("BlockingOperations", "OperationInfo", "OperationPlan", "Operations"),
    "fennelq.manage.queue": ("BlockingQueue", "Queue"),
    "fennelq.manage.queue_info": ("QueueInfo",),
    "fennelq.manage.queues": ("BlockingQueues", "OnProgress", "Place", "Queues"),
    "fennelq.manage.running": ("RunningJob",),
    "fennelq.manage.replay_plan": ("ReplayPlan",),
    "fennelq.manage.schedules": ("BlockingSchedules", "ScheduleInfo", "Schedules"),
    "fennelq.manage.search": ("Filters", "Moment"),
    "fennelq.manage.times": ("BlockingRunTimes", "RunMinute", "RunTimes", "TaskTimes"),
    "fennelq.model.happened": ("StoryLine",),
    "fennelq.model.runs": ("StoryRun",),
    "fennelq.model.story": ("Story",),
    "fennelq.sync": ("BlockingResult", "BlockingTask"),
}
