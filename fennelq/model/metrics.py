"""Every metric that fennelq exposes: its name, its type, its labels and its meaning. The pages of metrics, the guide
and the tests use this table."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    """A family of time series."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    """The values of the last label, if they are fixed."""


OUTCOMES: Final = ("success", "retry", "snooze", "dead", "cancelled", "released", "lost")
"""How a run of a job ends for its executor."""
SENDINGS: Final = ("created", "duplicate", "refused", "unavailable")
"""How a call that sends a job ends."""
STATES: Final = ("starting", "ready", "unready", "ending")
"""The states of an executor, as its supervisor sees it."""
ENDS: Final = ("finished", "recycled", "drained", "crashed", "killed", "unable")
"""Why the process of an executor has ended."""
ERRORS: Final = ("connection", "role", "capacity", "group", "script", "fatal", "bug")
"""Kinds of errors of Redis."""
COPIES: Final = ("made", "refused", "outrun")
"""What became of second copies."""
PLACES: Final = ("waiting", "limited", "blocked", "running", "scheduled", "retry", "dead")
"""The places of jobs in a queue."""
ENDED: Final = ("success", "dead", "cancelled")
"""How a job ends for good."""
EVENTS: Final = ("recovered", "released", "replayed", "purged", "dropped", "broken")
"""What happens to jobs in a queue, besides their ends."""

RUNS: Final = Metric(
    "fennelq_runs_total", "counter", "Runs of jobs that have ended.", ("queue", "task", "outcome"), OUTCOMES
)
RUN_TIMES: Final = Metric(
    "fennelq_run_duration_seconds", "histogram", "How long runs took.", ("queue", "task")
)
WAIT_TIMES: Final = Metric(
    "fennelq_wait_duration_seconds",
    "histogram",
    "How long jobs waited, from when they were due until their first start.",
    ("queue", "task"),
)
SENT: Final = Metric(
    "fennelq_sent_total", "counter", "Calls that send a job.", ("queue", "task", "outcome"), SENDINGS
)
SLOTS: Final = Metric("fennelq_slots", "gauge", "Jobs that may run at the same time.")
SLOTS_BUSY: Final = Metric("fennelq_slots_busy", "gauge", "Jobs that run now.")
UNSETTLED: Final = Metric("fennelq_unsettled", "gauge", "Outcomes that Redis has not confirmed yet.")
LOOP_LAG: Final = Metric(
    "fennelq_loop_lag_seconds", "gauge", "The longest delay of an event loop within the last second."
)
MEMORY: Final = Metric(
    "fennelq_resident_memory_bytes", "gauge", "Memory of the executors and their supervisor."
)
EXECUTORS: Final = Metric("fennelq_executors", "gauge", "Executor processes.", ("state",), STATES)
EXECUTOR_ENDS: Final = Metric(
    "fennelq_executor_ends_total", "counter", "Executor processes that have ended.", ("cause",), ENDS
)
LEASES_LOST: Final = Metric(
    "fennelq_leases_lost_total", "counter", "Runs whose job another executor has taken over."
)
REDIS_ERRORS: Final = Metric(
    "fennelq_redis_errors_total", "counter", "Errors of Redis that executors have met.", ("kind",), ERRORS
)
SPECULATIONS: Final = Metric(
    "fennelq_speculations_total", "counter", "Second copies of slow runs.", ("outcome",), COPIES
)
BUILD: Final = Metric("fennelq_build_info", "gauge", "The version of fennelq; the value is 1.", ("version",))

UP: Final = Metric("fennelq_up", "gauge", "Whether the last look at Redis has succeeded.")
QUEUE_JOBS: Final = Metric(
    "fennelq_queue_jobs", "gauge", "Jobs in a queue, by their place.", ("queue", "state"), PLACES
)
QUEUE_WAITING: Final = Metric(
    "fennelq_queue_waiting", "gauge", "Jobs that are ready to run, by priority.", ("queue", "priority")
)
OLDEST_WAITING: Final = Metric(
    "fennelq_queue_oldest_waiting_seconds",
    "gauge",
    "How long the job has waited that has waited longest; 0 when none waits.",
    ("queue",),
)
OVERDUE: Final = Metric(
    "fennelq_queue_overdue_seconds",
    "gauge",
    "How late the next scheduled job or retry is; 0 when none is late.",
    ("queue",),
)
PAUSED: Final = Metric("fennelq_queue_paused", "gauge", "Whether workers start no jobs of it.", ("queue",))
SERVED: Final = Metric(
    "fennelq_queue_executors", "gauge", "Living executors that take jobs of this queue.", ("queue",)
)
QUEUE_ENDED: Final = Metric(
    "fennelq_queue_ended_total", "counter", "Jobs that have ended.", ("queue", "outcome"), ENDED
)
QUEUE_EVENTS: Final = Metric(
    "fennelq_queue_events_total", "counter", "What has happened to jobs.", ("queue", "event"), EVENTS
)
NEXT_RUN: Final = Metric(
    "fennelq_schedule_next_run_timestamp_seconds", "gauge", "When a schedule is due next.", ("schedule",)
)
LAST_RUN: Final = Metric(
    "fennelq_schedule_last_run_timestamp_seconds",
    "gauge",
    "When a schedule has last sent a job.",
    ("schedule",),
)
SCHEDULE_ERRORS: Final = Metric(
    "fennelq_schedule_errors_total", "counter", "Ticks of a schedule that have failed.", ("schedule",)
)
DEAD_GROUPS: Final = Metric("fennelq_dead_groups", "gauge", "Groups of dead jobs: causes of death.")
HISTORY_BEHIND: Final = Metric(
    "fennelq_history_behind", "gauge", "Reports of ended jobs that wait for a recorder of the history."
)
SURVEY_TIME: Final = Metric(
    "fennelq_survey_duration_seconds", "gauge", "How long the last look at Redis took."
)

OF_WORKERS: Final = (
    *(RUNS, RUN_TIMES, WAIT_TIMES, SENT, SLOTS, SLOTS_BUSY, UNSETTLED, LOOP_LAG, MEMORY),
    *(EXECUTORS, EXECUTOR_ENDS, LEASES_LOST, REDIS_ERRORS, SPECULATIONS, BUILD),
)
"""The metrics of `/metrics` of a worker."""
OF_SENDERS: Final = (SENT, BUILD)
"""The metrics of a process that sends jobs."""
OF_REDIS: Final = (
    *(UP, QUEUE_JOBS, QUEUE_WAITING, OLDEST_WAITING, OVERDUE, PAUSED, SERVED, QUEUE_ENDED, QUEUE_EVENTS),
    *(NEXT_RUN, LAST_RUN, SCHEDULE_ERRORS, DEAD_GROUPS, HISTORY_BEHIND, SURVEY_TIME, BUILD),
)
"""The metrics of `fennelq exporter`."""
