"""All calls of Redis, by subject."""

from fennelq.broker.verbs import dead, executors, jobs, queues, runs, schedules, server

__all__ = ["dead", "executors", "jobs", "queues", "runs", "schedules", "server"]
