"""The table of the HTTP API: who may do what, and which function does it. The document is generated from it."""

from __future__ import annotations

from typing import Final

from fennelq.manage.sending import GivenCall
from fennelq.web.http import (
    bulk,
    dead,
    description,
    events,
    jobs,
    looking,
    metrics,
    operations,
    queues,
    results,
    schedules,
    search,
    sending,
)
from fennelq.web.http.table import ANY_USER, BULK, LARGE, SLOW, Route

_SENT: Final = {
    201: "The job was created.",
    200: "No new job: an earlier call with the same key or id has created this one.",
}
_BEGUN: Final = {
    202: "It goes on after this answer: follow the operation.",
    200: "With `dry_run`: what it would do.",
}
_BEGUN_OR_DONE: Final = {
    202: "It goes on after this answer: follow the operation.",
    200: "With `ids`: how many, and why others are still dead.",
}

ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "POST", "/jobs", "send", sending.send_job, "Send a job.",
        body=GivenCall, statuses=_SENT, returns="Sent", largest=LARGE, patience=SLOW,
        is_timed=True,
        example='{"task": "shop.tasks:welcome", "kwargs": {"user_id": 42}}',
    ),
    Route(
        "POST", "/jobs:bulk", "send", bulk.send_jobs, "Send up to 10,000 jobs: one answer per call, in their order.",
        body=list, statuses={200: "An answer for each call."}, returns="Bulk", largest=BULK, patience=120.0,
        example='{"jobs": [{"task": "shop.tasks:welcome", "kwargs": {"user_id": 42}}]}',
    ),
    Route(
        "GET", "/jobs", "see", search.find_jobs, "The jobs that meet a filter, about 100 a page.",
        query=search.SearchQuery, patience=SLOW,
    ),
    Route(
        "POST", "/jobs:cancel", "cancel", search.cancel_jobs, "Cancel all jobs that meet a filter.",
        body=search.ActBody, patience=60.0, statuses=_BEGUN, returns="Operation",
        example='{"where": "queue:mail task:welcome", "dry_run": true}',
    ),
    Route(
        "POST", "/jobs:run", "send", search.run_jobs, "Run all jobs that meet a filter and are due later now.",
        body=search.ActBody, patience=60.0, statuses=_BEGUN, returns="Operation",
        example='{"where": "state:scheduled task:welcome"}',
    ),
    Route(
        "POST", "/jobs:export", "see_arguments", search.export_jobs, "All jobs that meet a filter, without secrets.",
        body=search.ExportBody, media="application/x-ndjson", patience=SLOW, example='{"where": "queue:mail"}',
    ),
    Route("GET", "/jobs/{job}", "see", jobs.get_job, "Everything known about a job, and its story.", returns="Job"),
    Route(
        "GET", "/jobs/{job}/result", "see_arguments", results.job_result,
        "The result of a job, at once or when it has ended.", query=results.WaitQuery,
        patience=results.LONGEST + 5, is_timed=True,
        statuses={200: "The job has ended: `result`, or `error`.", 202: "It has not ended yet."}, returns="Result",
    ),
    Route(
        "GET", "/jobs/{job}/events", "see", events.job_events, "Follow the status and the progress of a job.",
        media="text/event-stream", statuses={200: "Events: `status`, `progress`, `end`."},
    ),
    Route(
        "DELETE", "/jobs/{job}", "cancel", jobs.cancel_job, "Cancel a job; one that runs is asked to stop.",
        body=jobs.CancelBody, patience=SLOW, returns="JobAnswer",
        statuses={200: "It is cancelled.", 202: "It runs, and was asked to stop."},
    ),
    Route(
        "POST", "/jobs/{job}:cancel", "cancel", jobs.cancel_job, "As DELETE, for clients that cannot send it.",
        body=jobs.CancelBody, patience=SLOW, returns="JobAnswer",
        statuses={200: "It is cancelled.", 202: "It runs, and was asked to stop."},
        example='{"reason": "the customer has left"}',
    ),
    Route(
        "POST", "/jobs/{job}:run", "send", jobs.run_job, "Run a job now that is due later.",
        patience=SLOW, returns="JobAnswer", statuses={200: "It is due now."},
    ),
    Route(
        "POST", "/jobs/{job}:replay", "replay", jobs.replay_job, "Put a dead job back, with new arguments if given.",
        body=jobs.ReplayBody, largest=LARGE, patience=SLOW, returns="JobAnswer", statuses={200: "It is back."},
    ),
    Route(
        "POST", "/jobs/{task}", "send", sending.send_task, "Send a call of a task; the body is its arguments.",
        body=dict, query=sending.SendQuery, statuses=_SENT, returns="Sent", largest=LARGE, patience=SLOW,
        is_timed=True, example='{"user_id": 42}',
    ),
    Route("GET", "/queues", "see", queues.list_queues, "Every queue, with its numbers of jobs, and its rates."),
    Route("GET", "/queues/{queue}", "see", queues.get_queue, "One queue.", patience=2.0),
    Route(
        "POST", "/queues/{queue}:pause", "pause", queues.pause_queue, "Pause a queue.",
        body=queues.PauseBody, patience=SLOW, example='{"why": "the mail server is down"}',
    ),
    Route(
        "POST", "/queues/{queue}:resume", "pause", queues.resume_queue, "End the pause of a queue.",
        body=queues.ResumeBody, patience=SLOW,
    ),
    Route(
        "POST", "/queues/{queue}:purge", "purge", queues.purge_queue,
        "Cancel all jobs of a queue that have not started.",
        body=queues.PurgeBody, patience=60.0, statuses=_BEGUN, returns="Operation", example='{"dry_run": true}',
    ),
    Route("GET", "/dead/groups", "see", dead.dead_groups, "Dead jobs by cause.", patience=SLOW),
    Route(
        "GET", "/dead", "see", dead.list_dead, "The dead jobs that meet a filter, about 100 a page.",
        query=search.SearchQuery, patience=SLOW,
    ),
    Route(
        "POST", "/dead:plan", "replay", dead.plan_replay, "What a replay would do; `plan` is the body that does it.",
        body=dead.PlanBody, patience=60.0, largest=LARGE, example='{"fingerprint": "3f9a21c0"}',
    ),
    Route(
        "POST", "/dead:replay", "replay", dead.replay_dead, "Put dead jobs back.",
        body=dead.ReplayDeadBody, patience=SLOW, largest=LARGE, statuses=_BEGUN_OR_DONE, returns="Operation",
        example='{"fingerprint": "3f9a21c0", "canary": 5}',
    ),
    Route(
        "POST", "/dead:purge", "purge", dead.purge_dead, "Remove dead jobs for good.",
        body=dead.DeadBody, patience=SLOW, statuses=_BEGUN_OR_DONE, returns="Operation",
        example='{"fingerprint": "3f9a21c0"}',
    ),
    Route(
        "POST", "/dead:import", "replay", dead.import_dead, "Send the jobs of an export, with their ids.",
        body=list, largest=BULK, patience=120.0,
    ),
    Route("GET", "/operations", "see", operations.list_operations, "The operations of the last thirty days."),
    Route(
        "GET", "/operations/{operation}", "see", operations.get_operation, "How far an operation is.",
        returns="Operation",
    ),
    Route(
        "POST", "/operations/{operation}:stop", "cancel", operations.stop_operation, "Stop an operation on jobs.",
        patience=SLOW, returns="Operation",
    ),
    Route("GET", "/schedules", "see", schedules.list_schedules, "All schedules."),
    Route("GET", "/schedules/{schedule}", "see", schedules.get_schedule, "One schedule."),
    Route(
        "PUT", "/schedules/{schedule}", "schedule", schedules.put_schedule, "Make a schedule, or change it.",
        body=schedules.ScheduleBody, largest=LARGE, patience=SLOW,
        example='{"task": "shop.tasks:report", "cron": "0 9 * * 1-5", "tz": "Europe/Paris"}',
    ),
    Route(
        "DELETE", "/schedules/{schedule}", "schedule", schedules.delete_schedule,
        "Remove a schedule that was made at run time.", patience=SLOW, statuses={204: "It is removed."},
    ),
    Route("POST", "/schedules/{schedule}:pause", "schedule", schedules.pause_schedule, "Pause it.", patience=SLOW),
    Route("POST", "/schedules/{schedule}:resume", "schedule", schedules.resume_schedule, "Resume it.", patience=SLOW),
    Route(
        "POST", "/schedules/{schedule}:run", "schedule", schedules.run_schedule, "Run a schedule once, now.",
        patience=SLOW, statuses={201: "The job was created."}, returns="Sent",
    ),
    Route("GET", "/executors", "see", looking.list_executors, "The executors, as they have reported themselves."),
    Route(
        "GET", "/running", "see", looking.list_running, "The jobs that run now, the longest first.",
        query=looking.RunningQuery,
    ),
    Route("GET", "/tasks", "see", looking.list_tasks, "The tasks, their parameters, and how long their runs take."),
    Route(
        "GET", "/health", "see", looking.health, "The checks of the dashboard's page Health.", patience=SLOW,
        statuses={200: "All checks pass.", 503: "A check fails."},
    ),
    Route(
        "GET", "/audit", "see", looking.audit, "What was changed, by whom, from where, and how it ended.",
        query=looking.AuditQuery, patience=SLOW,
    ),
    Route(
        "GET", "/scale", "see", queues.scale, "The backlog of queues, and the workers that they need.",
        query=queues.ScaleQuery, returns="Scale", patience=2.0,
    ),
    Route(
        "GET", "/metrics", "see", metrics.metrics, "The metrics of what is in Redis, for Prometheus.",
        media="text/plain", is_timed=True,
    ),
    Route("GET", "/openapi.json", ANY_USER, description.document, "This document.", is_timed=True),
    Route(
        "GET", "/reference", ANY_USER, description.reference, "This document as a page.", media="text/html",
        is_timed=True,
    ),
)  # fmt: skip
