"""The JSON objects of `fennelq history … --json`."""

from __future__ import annotations

from dataclasses import asdict

from fennelq.manage.documents import Document
from fennelq.manage.history.store import HistoryBucket, HistoryProgress, HistoryStats


def of_facts(facts: HistoryStats) -> Document:
    """What a history has."""
    return asdict(facts)


def of_bucket(bucket: HistoryBucket) -> Document:
    """The jobs that ended in one hour or day, and the mean times of their last runs and of their waits, in seconds."""
    return {
        "at": bucket.at,
        "status": bucket.status,
        "jobs": bucket.jobs,
        "run": round(bucket.run_seconds / bucket.jobs, 3),
        "wait": round(bucket.wait_seconds / bucket.jobs, 3),
    }


def of_recorder(progress: HistoryProgress) -> Document:
    """How far a recorder has come."""
    return progress._asdict()
