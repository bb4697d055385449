"""Mutants of Python modules that no test can notice, and why: (file, function, what was done) → reason.

What is changed has to be thought about anew: then its entries here fit no mutant any more. Moved lines are no change.
"""

from __future__ import annotations

from typing import Final

Key = tuple[str, str, str]

BY_REASON: Final[dict[str, list[Key]]] = {
    "only the order differs, and nothing is promised about it": [
        ("worker/threads/heartbeat.py", "Heartbeat.beat", "backwards: self._state.held.tokens()"),
        ("worker/threads/heartbeat.py", "Heartbeat.beat", "backwards: answers"),
        ("worker/running/hot.py", "HotQueues.next", "backwards: asked"),
        ("worker/running/settler.py", "Settler.drain", "backwards: list(self._queues.values())"),
        ("worker/running/settler.py", "Backlog._let_in", "backwards: blocked"),
        (
            "worker/running/held.py",
            "HeldJobs.tokens",
            "swapped: [token for token, held in list(self.by_token.items()) if …",
        ),
        (
            "worker/running/held.py",
            "HeldJobs.job_of",
            "backwards: (*list(self.by_token.values()), *list(self.stuck))",
        ),
        ("worker/running/workbench.py", "Workbench.stop_all", "backwards: running"),
        (
            "worker/running/workbench.py",
            "Workbench.stop_all",
            "swapped: [held.task for held in running if held.task is not None]",
        ),
        (
            "worker/running/workbench.py",
            "Workbench.settle_again",
            "backwards: list(self._held.by_token.values())",
        ),
        ("waiting.py", "Waiting.close", "backwards: (self._rechecking, self._subscribing)"),
        ("waiting.py", "Waiting.close", "backwards: self._waiters"),
        ("broker/talk.py", "together", "backwards: every"),
        ("waiting.py", "Waiting._resolve", "backwards: self._waiters.get(job_id, ())"),
    ],
    "for no queues, or no jobs, nothing is done": [
        ("worker/duties/recovery.py", "Recovery._sweep", "if not queues → false"),
        ("worker/duties/recovery.py", "Recovery._sweep", "removed: return (2)"),
        ("worker/running/settler.py", "Settler._write_batch", "if (left := batch[len(written):]) → true"),
        ("worker/running/settler.py", "Backlog.remove", "if self._waiting → true"),
        ("worker/running/settler.py", "Backlog._let_in", "if blocked → true"),
        ("worker/running/consumer.py", "Consumer._turn", "if self._suspects → true"),
        ("worker/running/consumer.py", "Consumer._fetch", "if catch.deliveries → true"),
    ],
    "only the heap gets longer, by entries that are skipped": [
        (
            "worker/running/hot.py",
            "HotQueues.add",
            "without 'not hot.woken' in: woken and (not hot.woken)",
        ),
    ],
    "the pause is one second": [("worker/rounds.py", "length_of", "number * _PAGE_PAUSE → /")],
    "of the first answer there is none before": [
        (
            "worker/threads/lease.py",
            "Lease._clock_jumped",
            "without 'self._latest is None' in: self._latest is None or self._before is None",
        ),
    ],
    "a job has its task from the moment it is held": [
        (
            "worker/running/held.py",
            "HeldJobs.tasks",
            "without 'held.task is not None' in: held.running and held.task is not None",
        ),
        ("worker/running/workbench.py", "Workbench.stop_all", "if held.task is not None → true"),
        (
            "worker/running/held.py",
            "Held.running",
            "without 'self.task is not None' in: self.task is not None and (not self.task.done()) and (sel…",
        ),
        (
            "worker/running/held.py",
            "Held._cancel",
            "without 'self.task is not None' in: self.begun and self.task is not None",
        ),
        ("worker/running/held.py", "_frames_of_task", "if task is not None → true"),
    ],
    "the outcome takes the slower way through `settle`": [
        (
            "worker/running/workbench.py",
            "Workbench._run",
            "if not self._settler.offer(held.delivery, outcome, self._slo… → true",
        ),
    ],
    "the same is asked again a step later": [
        (
            "waiting.py",
            "Waiting._ask",
            "without 'not self._decided' in: batcher is self._watches and (not self._decided)",
        ),
    ],
    "when nothing waits any more, the loop ends before its first attempt": [
        ("waiting.py", "Waiting._replied", "removed: return"),
        (
            "waiting.py",
            "Waiting._lost",
            "without 'self._waiters' in: self._waiters and (not (confirmed.cancelled() or confirme…",
        ),
        (
            "waiting.py",
            "Waiting._lost",
            "without 'self._closed' in: confirmed.cancelled() or confirmed.exception() or self._c…",
        ),
    ],
    "where polling has ended, the refusal was over": [
        (
            "waiting.py",
            "Waiting._decided",
            "without 'self.polling' in: self.polling and clock.monotonic() < self._refused_until",
        ),
    ],
    "the batch refuses the id by itself, before anything is asked": [
        ("waiting.py", "Waiting.look", "removed: split_id(job_id)"),
    ],
    "a clock shows one moment hardly ever": [
        (
            "waiting.py",
            "Waiting._decided",
            "clock.monotonic() < self._refused_until → <=",
        ),
    ],
    "a server answers a subscription once": [
        ("waiting.py", "Waiting._subscribe", "if not confirmed.done() → true (2)"),
        ("waiting.py", "Waiting._subscribe", "if not confirmed.done() → true"),
    ],
    "what is fetched while it stops is handed back untouched": [
        ("worker/running/consumer.py", "Consumer._turn", "removed: return"),
    ],
    "an end always comes with an envelope, which may be empty": [
        ("looks.py", "ended", "without 'b''' in: envelope or b''"),
    ],
    "only whether there is one counts, not which": [
        ("broker/talk.py", "patient", "backwards: received"),
    ],
    "the slower way gives the same": [
        ("broker/talk.py", "patient", "if isinstance(reply, Exception) → true"),
        ("broker/talk.py", "patient", "removed: break"),
        ("broker/dispatch.py", "dispatch", "if len(items) == 1 → false"),
        ("broker/dispatch.py", "dispatch", "if len(places) == len(items) → false"),
        ("broker/dispatch.py", "in_pages", "if len(items) > 1 → true"),
        ("broker/dispatch.py", "in_pages", "len(items) > 1 → >="),
        ("broker/dispatch.py", "_pages", "if size is None → false"),
    ],
}

EQUIVALENT: Final[dict[Key, str]] = {key: reason for reason, keys in BY_REASON.items() for key in keys}
