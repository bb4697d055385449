"""The tables of the history, as steps from one version to the next. A step that was released is never changed."""

from __future__ import annotations

from typing import Final

_JOBS: Final = """
CREATE TABLE jobs (
    id TEXT PRIMARY KEY,
    queue TEXT NOT NULL,
    status TEXT NOT NULL,
    ended BIGINT NOT NULL,
    task TEXT,
    created BIGINT,
    due BIGINT,
    started BIGINT,
    tries INTEGER,
    starts INTEGER,
    executor TEXT,
    error TEXT,
    message TEXT,
    traceback TEXT,
    fingerprint TEXT,
    reason TEXT,
    key TEXT,
    args TEXT,
    headers TEXT,
    events TEXT
)"""
_COUNTS: Final = """
CREATE TABLE counts (
    hour BIGINT NOT NULL,
    queue TEXT NOT NULL,
    task TEXT NOT NULL,
    status TEXT NOT NULL,
    n BIGINT NOT NULL,
    run_ms BIGINT NOT NULL,
    wait_ms BIGINT NOT NULL,
    PRIMARY KEY (hour, queue, task, status)
)"""
_HOURS: Final = """
CREATE TABLE hours (
    hour BIGINT NOT NULL,
    status TEXT NOT NULL,
    n BIGINT NOT NULL,
    run_ms BIGINT NOT NULL,
    wait_ms BIGINT NOT NULL,
    PRIMARY KEY (hour, status)
)"""
"""The sums of `counts` for all queues and tasks, so that a chart of all jobs reads few rows, however many tasks there
are."""
_GAPS: Final = """
CREATE TABLE gaps (
    queue TEXT NOT NULL,
    missed BIGINT NOT NULL,
    since BIGINT NOT NULL,
    until BIGINT NOT NULL,
    PRIMARY KEY (queue, missed)
)"""

_AUDIT: Final = """
CREATE TABLE audit (
    id TEXT PRIMARY KEY,
    began BIGINT NOT NULL,
    ended BIGINT,
    line BIGINT NOT NULL,
    who TEXT NOT NULL,
    via TEXT NOT NULL,
    what TEXT NOT NULL,
    target TEXT NOT NULL,
    options TEXT NOT NULL,
    planned BIGINT,
    done BIGINT,
    state TEXT NOT NULL,
    outcome TEXT NOT NULL,
    value_before TEXT NOT NULL,
    value_after TEXT NOT NULL
)"""
"""Operations. `line` is when the newest line of an operation was written: a recorder goes on there."""

VERSION_TABLE: Final = "CREATE TABLE fennelq_history (version INTEGER NOT NULL, app TEXT NOT NULL)"

STEPS: Final = (
    (
        _JOBS,
        "CREATE INDEX jobs_by_end ON jobs (ended)",
        "CREATE INDEX jobs_by_task ON jobs (task, ended)",
        "CREATE INDEX jobs_by_status ON jobs (status, ended)",
        "CREATE INDEX jobs_by_fingerprint ON jobs (fingerprint, ended) WHERE fingerprint IS NOT NULL",
        _COUNTS,
        _HOURS,
        _GAPS,
    ),
    (
        _AUDIT,
        "CREATE INDEX audit_by_begin ON audit (began, id)",
        "CREATE INDEX audit_by_line ON audit (line)",
    ),
)
"""The statements that lead to version 1, 2, …"""
VERSION: Final = len(STEPS)
