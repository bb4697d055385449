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
        ("worker/threads/heartbeat.py", "Heartbeat._publish", "backwards: found.stopping"),
        ("worker/threads/heartbeat.py", "Heartbeat._unsure", "backwards: list(self._state.unsure.items())"),
        ("worker/running/hot.py", "HotQueues.next", "backwards: asked"),
        (
            "worker/running/progress_notes.py",
            "Notes.last_of",
            "swapped: [note.taken() for note in notes if note is not None and n…",
        ),
        ("worker/running/progress_notes.py", "Notes._forget", "backwards: lost.tokens"),
        ("worker/running/progress_notes.py", "Notes._write_those", "backwards: notes"),
        ("worker/running/progress_notes.py", "Notes._write_those", "backwards: unsent.values()"),
        ("worker/running/progress_notes.py", "Notes._answered", "backwards: notes"),
        ("worker/running/consumer.py", "Consumer._find_unread", "backwards: sorted(self._unread)"),
        (
            "worker/running/consumer.py",
            "Consumer._hand_back_stranded",
            "backwards: {token[0] for token in suspects}",
        ),
        ("worker/running/rings.py", "Rings._stay_awake", "backwards: pages(queues, AT_ONCE)"),
        ("worker/running/rings.py", "Rings._sent", "backwards: await self._state.broker.run_each(calls)"),
        ("worker/running/settler.py", "Settler.drain", "backwards: list(self._queues.values())"),
        ("worker/running/settler.py", "Backlog._let_in", "backwards: blocked"),
        (
            "worker/running/held.py",
            "HeldJobs.tokens",
            "swapped: [token for token, held in list(self.by_token.items()) if …",
        ),
        (
            "worker/running/held.py",
            "HeldJobs.never_began",
            "swapped: [token for token, held in list(self.by_token.items()) if …",
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
        ("waiting/waiting.py", "Waiting.close", "backwards: (self._rechecking, self._subscribing)"),
        ("waiting/waiting.py", "Waiting.close", "backwards: self._waiters"),
        ("broker/talk.py", "together", "backwards: every"),
        ("waiting/waiting.py", "Waiting._resolve", "backwards: self._waiters.get(job_id, ())"),
        ("waiting/waiting.py", "Waiting._progressed", "backwards: self._followers.get(job_id, ())"),
        ("worker/tally.py", "Tally.taken", "backwards: fact.deliveries"),
        (
            "worker/tally.py",
            "Tally.counting",
            "swapped: [((queue, task), counted.row()) for queue, tasks in list(…",
        ),
        ("worker/tally.py", "Tally.ended", "backwards: fact.runs"),
        ("worker/tally.py", "Tally.take", "backwards: self._kept.items()"),
        ("worker/tally.py", "Tally.take", "backwards: self._queues.values()"),
        ("model/routes.py", "Routes.add", "backwards: list(self._routed.values())"),
        ("worker/duties/meter.py", "Meter._collect", "backwards: tasks.items()"),
        ("worker/duties/meter.py", "Meter._send", "backwards: pages(queues, MOST_AT_ONCE)"),
        (
            "worker/duties/meter.py",
            "Unsent.add",
            "backwards: ((RUN, counted.run_times), (WAIT, counted.waits[:BUCKETS]))",
        ),
        ("worker/duties/meter.py", "Unsent.add", "backwards: ENDS.items()"),
        ("worker/duties/meter.py", "Unsent.add", "backwards: enumerate(counts)"),
        (
            "worker/duties/meter.py",
            "Unsent.make_reports",
            "backwards: [queue for queue in self._counts if queue not in self.rep…",
        ),
    ],
    "for no queues, or no jobs, nothing is done": [
        ("worker/duties/recovery.py", "Recovery._sweep", "if not queues → false"),
        ("worker/duties/recovery.py", "Recovery._sweep", "removed: return (2)"),
        ("worker/running/settler.py", "Settler._write_batch", "if (left := batch[len(written):]) → true"),
        ("worker/running/settler.py", "Settler._finish", "if self.notes.open → true"),
        ("worker/running/settler.py", "Backlog.remove", "if self._waiting → true"),
        ("worker/running/settler.py", "Backlog._let_in", "if blocked → true"),
        ("worker/running/consumer.py", "Consumer._turn", "if self._unread → true"),
        ("worker/running/consumer.py", "Consumer._turn", "if self._suspects → true"),
        ("worker/running/consumer.py", "Consumer._fetch", "if catch.made → true"),
        ("worker/running/consumer.py", "Consumer._fetch", "if catch.too_new → true"),
        (
            "worker/running/consumer.py",
            "Consumer._hand_back_stranded",
            "without 'entries' in: entries and (not self._aside.has(queue))",
        ),
        ("worker/running/rings.py", "Rings.pass_on", "if self._unanswered → true"),
    ],
    "what will bring the reply keeps the task too, in this version of asyncio": [
        ("worker/running/rings.py", "Rings._keep", "removed: self._sending.add(task)"),
    ],
    "the next turn looks at the next one": [
        ("worker/running/consumer.py", "Consumer._find_unread", "only the first of: sorted(self._unread)"),
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
    ],
    "the outcome takes the slower way through `settle`": [
        (
            "worker/running/workbench.py",
            "Workbench._run",
            "if not self._settler.offer(settled, self._slots.give_back) → true",
        ),
    ],
    "when nothing waits any more, the loop ends before its first attempt": [
        ("waiting/waiting.py", "Waiting._replied", "removed: return"),
        (
            "waiting/waiting.py",
            "Waiting._lost",
            "without 'self._waiters' in: self._waiters and (not (confirmed.cancelled() or confirme…",
        ),
        (
            "waiting/waiting.py",
            "Waiting._lost",
            "without 'self._closed' in: confirmed.cancelled() or confirmed.exception() or self._c…",
        ),
    ],
    "where polling has ended, the refusal was over": [
        (
            "waiting/waiting.py",
            "Waiting._decided",
            "without 'self.polling' in: self.polling and clock.monotonic() < self._refused_until",
        ),
    ],
    "a job that is followed has a waiter, to which its end goes": [
        ("waiting/waiting.py", "Waiting._message", "if name.startswith(OF_PROGRESS) → true"),
    ],
    "the batch refuses the id by itself, before anything is asked": [
        ("waiting/waiting.py", "Waiting.look", "removed: split_id(job_id)"),
    ],
    "only the same value is written, or looked at, once more": [
        ("waiting/waiting.py", "_Follower.hear", "reported.order > self._newest.order → >="),
        ("worker/running/progress_notes.py", "Notes._write_those", "if note.newest is not note.sent → true"),
        ("worker/running/progress_notes.py", "Notes._again", "removed: note.scheduled = True"),
    ],
    "what a run reports after its outcome may be dropped": [
        ("worker/running/progress_notes.py", "Notes.report", "if note is None → true"),
    ],
    "a run without a task does not run": [
        (
            "worker/running/progress_notes.py",
            "Notes.report",
            "without 'held.task is None' in: held.task is None or not held.running or self._held.by_to…",
        ),
    ],
    "a clock shows one moment hardly ever": [
        ("worker/running/progress_notes.py", "Notes._schedule", "wait > 0 → >="),
        (
            "waiting/waiting.py",
            "Waiting._decided",
            "clock.monotonic() < self._refused_until → <=",
        ),
        (
            "worker/tally.py",
            "Tally._forget_old",
            "self._recent[0].until < clock.monotonic() - _RECENT → <=",
        ),
        (
            "worker/duties/meter.py",
            "Meter.tick",
            "clock.monotonic() >= self._collected + MINUTE / 2 → >",
        ),
    ],
    "a server answers a subscription once": [
        ("waiting/waiting.py", "Waiting._subscribe", "if not confirmed.done() → true (2)"),
        ("waiting/waiting.py", "Waiting._subscribe", "if not confirmed.done() → true"),
    ],
    "what is fetched while it stops is handed back untouched": [
        ("worker/running/consumer.py", "Consumer._turn", "removed: return"),
    ],
    "an end always comes with an envelope, which may be empty": [
        ("waiting/looks.py", "ended", "without 'b''' in: envelope or b''"),
    ],
    "only whether there is one counts, not which": [
        ("broker/talk.py", "patient", "backwards: received"),
        ("worker/running/consumer.py", "Consumer._ask", "backwards: ends"),
    ],
    "a dict that is made without items has nothing to initialize": [
        ("worker/tally.py", "Tasks.__init__", "removed: super().__init__()")
    ],
    "zero is added": [("worker/tally.py", "Tally.taken", "waited > 0 → >=")],
    "a fact that no part has subscribed to reaches none": [
        (
            "worker/running/settler.py",
            "Settler._publish_ends",
            "without 'self._at_ends' in: ended and self._at_ends",
        ),
    ],
    "the slower way gives the same": [
        ("worker/tally.py", "Tasks.runs_of", "if self._room.keeps(task, found) → false"),
        (
            "worker/tally.py",
            "Tasks.runs_of",
            "removed: self.runs.setdefault(kind, {})[task] = found.runs[kind]",
        ),
        ("worker/running/settler.py", "Settler._publish_ends", "if Answer.LOST in answers → true"),
        ("worker/running/held.py", "_frames_of_thread", "if ident is not None → true"),
        (
            "worker/running/workbench.py",
            "Workbench.start",
            "without 'self._early.by_token' in: self._early.by_token and (why := self._early.take(deliver…",
        ),
        ("worker/running/consumer.py", "Consumer._ask", "if len(asked) == 1 → false"),
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
