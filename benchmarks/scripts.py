"""Calls the scripts of a job one after the other, without an executor."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from fennelq.broker import verbs
from fennelq.broker.blocking import BlockingBroker
from fennelq.broker.connection import address_of
from fennelq.broker.keys import LANES, queue_keys
from fennelq.broker.verb import Verb
from fennelq.broker.verbs.runs import Catch, Settled
from fennelq.broker.verbs.search import Criteria, find
from fennelq.model.job import Delivery, JobFailure, new_key
from fennelq.model.lifetimes import Lifetimes
from fennelq.model.outcome import Outcome, died, succeeded
from fennelq.model.result_codec import ANY_RESULT
from fennelq.model.wire import NOTHING, WireJob

_LIFETIMES: Final = Lifetimes(600_000, 3_600_000)
_DONE: Final = succeeded(b"1", 60_000)

_MESSAGE: Final = "the card was refused by the bank " * 3
_TRACEBACK: Final = '  File "shop/tasks.py", line 12, in charge\n    bank.charge(card)\n' * 20
_COUNT: Final = "began_group = join_group(entry, group, task, type, sample, why)"
_KINDS: Final = 30
"""Groups of the jobs that die."""

Gates = Callable[[int], str]
"""The gates of the job with this number."""
Arguments = Callable[[int], bytes]
"""The arguments of the job with this number."""


class Scripts:
    """One queue, and one caller of its scripts."""

    def __init__(self, url: str, queue: str = "scripts") -> None:
        self.keys: Final = queue_keys("bench", queue)
        self._broker = BlockingBroker(address_of(url))

    def note(self) -> None:
        """Note the queue among those of the app, as a client does with its first job."""
        self._broker.send_all([verbs.queues.note_queues(self.keys.app, [self.keys.queue])])

    def begin_recording(self) -> None:
        """From now on, scripts write down which jobs have ended."""
        self._broker.send_all([verbs.ends.ends_take(self.keys, "bench", 1)])

    def record(self) -> int:
        """Read and remove what was written down, as a recorder does; returns the number of jobs."""
        (taken,) = self._broker.send_all([verbs.ends.ends_take(self.keys, "bench", 40)])
        if not taken.entries:
            return 0
        jobs = [end.key for entry in taken.entries for end in entry.each()]
        for at in range(0, len(jobs), 500):
            self._broker.send_all([verbs.ends.ends_read(self.keys, jobs[at : at + 500])])
        self._broker.send_all(
            [verbs.ends.ends_done(self.keys, [entry.entry for entry in taken.entries], jobs, ends=len(jobs))]
        )
        return len(jobs)

    def enqueue(
        self, number: int, *, per_call: int, gates: Gates | None = None, arguments: Arguments | None = None
    ) -> None:
        """Send so many jobs."""
        queue = self.keys.queue
        for first in range(0, number, per_call):
            page = range(first, min(number, first + per_call))
            jobs = [_job(queue, one, gates, arguments) for one in page]
            self._broker.send_all([verbs.jobs.enqueue(self.keys, jobs)])

    def fetch(self, number: int, *, per_call: int) -> Iterator[list[Delivery]]:
        """Take so many jobs, which must be there."""
        while number > 0:
            taken = self._fetch(per_call).deliveries
            number -= len(taken)
            yield taken

    def finish(self, runs: list[Delivery]) -> None:
        """End these runs with success."""
        self._broker.send_all(
            [verbs.runs.finish(self.keys, [Settled(run, _DONE) for run in runs], _LIFETIMES)]
        )

    def die(self, runs: Sequence[Delivery], *, indexed: bool = True) -> None:
        """End these runs with a failure, of many kinds. `indexed`: their groups are counted, as they are always."""
        settled = [Settled(run, _died(number)) for number, run in enumerate(runs)]
        verb = verbs.runs.finish(self.keys, settled, _LIFETIMES)
        self._broker.send_all([verb if indexed else _not_indexed(verb)])

    def find(self, place: str, criteria: Criteria) -> Iterator[int]:
        """Search a place to its end, as fast as the server replies; yields how many jobs each step has looked at."""
        cursor = ""
        while True:
            (step,) = self._broker.send_all([find(self.keys, [place], criteria, cursor)])
            yield step.looked
            if step.done:
                return
            cursor = step.cursor

    def survey(self, times: int, *, per_call: int) -> None:
        """Survey the queue so many times, in pipelines as a list of queues sends them."""
        page = [verbs.survey.survey(self.keys)] * per_call
        for _ in range(times // per_call):
            self._broker.send_all(page)

    def running(self) -> int:
        """Read a page of the jobs that run; returns how many it has."""
        return len(self._broker.send_all([verbs.survey.running(self.keys)])[0].runs)

    def look(self, times: int) -> None:
        """Look at the queue, as an executor that sleeps there."""
        for _ in range(times):
            self._fetch(1, sleeps=True)

    def _fetch(self, free: int, *, sleeps: bool = False) -> Catch:
        lanes = tuple(LANES.values())
        verb = verbs.runs.fetch(
            self.keys, consumer="anna", free=free, lanes=lanes, lifetimes=_LIFETIMES, sleeps=sleeps
        )
        return self._broker.send_all([verb])[0]


def _job(queue: str, number: int, gates: Gates | None, arguments: Arguments | None) -> WireJob[Any]:
    carried = {"gates": gates(number)} if gates else NOTHING
    given = arguments(number) if arguments else b"[[],{}]"
    return WireJob(queue, new_key(), "bench:noop", given, ANY_RESULT, carried)


def _died(number: int) -> Outcome:
    kind = number % _KINDS
    failure = JobFailure(f"shop:Refused{kind}", _MESSAGE, _TRACEBACK, "tries", f"{kind:08x}")
    return died(failure, 3, 3_600_000)


def _not_indexed(verb: Verb[list[int]]) -> Verb[list[int]]:
    """The same without the step that counts a dead job in the group of its kind."""
    begin, count, rest = verb.script.source.partition(_COUNT)
    assert count, f"{verb.script.name} does not have {_COUNT}"
    source = f"{begin}began_group = nil{rest}"
    sha = hashlib.sha1(source.encode()).hexdigest()
    return verb._replace(script=verb.script._replace(source=source, sha=sha))
