"""The rows of the fault matrix that have a test: what happens, by its short name.

A test names its row by `figure("F1", …)`, or at the beginning of its docstring ("D7. …"). `tests/test_architecture.py`
checks that each of these rows has such a test.
"""

from __future__ import annotations

from typing import Final

ROWS: Final = {
    "F1": "executors are killed at random",
    "F4": "a worker is asked to stop",
    "F5": "an executor stands still for longer than a lease and goes on",
    "F6": "a job kills its process",
    "F7": "a handler blocks the loop",
    "F8": "a handler ignores its cancellation",
    "F9": "handlers are stuck in their slots",
    "F11": "thousands of restarts",
    "F12": "a crash with many jobs in flight",
    "N1": "a worker is cut off, and its packets arrive later",
    "N2": "connections are reset at random",
    "N3": "the reply to an enqueue is lost",
    "N4": "the reply to a fetch is lost",
    "N5": "the reply to a finish is lost",
    "N6": "a read is cancelled",
    "N7": "the network is silent",
    "N8": "Redis is slow or pauses",
    "N9": "too many clients",
    "N10": "machines whose clocks are hours apart",
    "N11": "the clock of Redis is set",
    "R1": "Redis is killed and comes back",
    "R2": "Redis comes back without its data",
    "R3": "Redis loads for long",
    "R7": "Redis is over maxmemory",
    "R8": "Redis may evict jobs",
    "R9": "the disk is full",
    "R10": "Redis forgets its scripts",
    "R11": "very many jobs are due at once",
    "R12": "a few jobs are stuck while a million pass",
    "R13": "Redis is away for longer than the lease",
    "D1": "a task that only a newer version knows",
    "D2": "entries that cannot be read",
    "D3": "an operator deletes entries",
    "D5": "many schedulers",
    "D6": "recurring jobs and schedulers that die",
    "D7": "dead jobs are replayed by several clients at once",
    "D8": "one idempotency key, many clients, and the end of its owner",
    "D9": "many waiters, late ones, cancelled ones",
    "D10": "a result expires, or Redis is restarted, while a client waits",
    "D11": "a cancellation races with every step of a job",
    "D12": "several settle the same job",
    "T10": "a message to a sleeping executor is lost, or one of the two is killed",
}
