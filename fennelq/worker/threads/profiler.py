"""Profiles this executor for a person who asks: for some seconds, it counts which code runs, or what allocates memory.

One thread samples, so that slow replies of Redis do not falsify the profile. Another one reports how far it is; when no
client waits for the profile any more, the next report ends it.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import orjson

from fennelq import __version__, clock
from fennelq.broker import verbs
from fennelq.broker.blocking import BlockingBroker
from fennelq.broker.keys import AppKeys
from fennelq.model.questions import Profiling, Question
from fennelq.worker.allocations import Allocations
from fennelq.worker.outage import LogThrottle
from fennelq.worker.sampling import Counted, Place, Samples
from fennelq.worker.state import State

if TYPE_CHECKING:
    from fennelq.app import App

EVERY: Final = 0.01
"""Seconds from one sample to the next."""
_SWITCH: Final = 1e-3
"""Seconds after which the sampler asks the interpreter for its turn, in place of 5 ms. The shorter the time, the fairer
the samples, and the more often the sampler wakes up in vain while the loop has no processor."""
_LOOKS: Final = 3
"""Looks at a loop that seems to wait."""
_BETWEEN: Final = 3e-4
"""Seconds from one of these looks to the next, at most."""
_AT_ONCE: Final = 2e-5
"""Seconds after which these looks ask the interpreter for their turn."""
REPORT_EVERY: Final = 1.0
_KEPT_MS: Final = 3_600_000
_MOST_BYTES: Final = 1_000_000
_MOST_NAMED: Final = 20
"""Of a profile."""
_ATTEMPTS: Final = 10
"""To write the profile, while Redis cannot be reached."""
_LEAVING: Final = 2.0


class Profiler:
    """Makes one profile at a time."""

    def __init__(self, state: State) -> None:
        self._state, self._keys = state, AppKeys(state.namespace)
        self._now: tuple[Profiling, float] | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether a profile is under way."""
        return self._now is not None

    def answer(self, question: Question) -> dict[str, Any]:
        """The answer to a question for a profile: whether it begins now, and otherwise who was first."""
        wanted = Profiling.read(question.more)
        if wanted is None:
            return {"refused": "the question cannot be read"}
        if (now := self._now) is not None:
            asked, begun = now
            left = max(0.0, asked.seconds - (clock.monotonic() - begun))
            return {"busy": {"who": asked.who, "left": round(left, 1)}}
        return {"profiling": wanted.seconds}

    def start(
        self,
        question: Question,
        broker: BlockingBroker,
        loop: asyncio.AbstractEventLoop | None,
        loop_thread: int | None,
    ) -> None:
        """Begin, unless a profile is under way. `broker` is closed at its end."""
        wanted = Profiling.read(question.more)
        if wanted is None or self._now is not None or self._ended.is_set():
            return
        self._now = wanted, clock.monotonic()
        state = self._state
        watch: Timing | Keeping = Keeping(state) if wanted.memory else Timing(state, loop, loop_thread)
        log = LogThrottle("profiling", state.outage)
        job = _Profile(self._keys, question.request, broker, log, _isolated(state.app))
        self._thread = threading.Thread(
            target=self._run, args=(job, watch, wanted.seconds), name="fennelq-profiler", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError:  # the process may have no more threads
            self._now = None
            broker.close()
            raise

    def end(self) -> None:
        """End a profile that is under way; the client learns why."""
        self._ended.set()

    def gone(self) -> None:
        """Returns when its thread has ended, after two seconds in any case."""
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(_LEAVING)

    def _run(self, profile: _Profile, watch: Timing | Keeping, seconds: float) -> None:
        try:
            profile.make(watch, seconds, self._ended)
        finally:
            self._now = None


def _isolated(app: App) -> list[str]:
    """The tasks that run in processes of their own, which nothing here samples."""
    return sorted(name for name, task in app.tasks.items() if task.isolated)[:_MOST_NAMED]


class _Profile:
    """A profile that a client waits for."""

    def __init__(
        self, keys: AppKeys, request: str, broker: BlockingBroker, log: LogThrottle, elsewhere: list[str]
    ) -> None:
        self._keys, self._request, self._broker, self._log = keys, request, broker, log
        self._elsewhere = elsewhere

    def make(self, watch: Timing | Keeping, seconds: float, ended: threading.Event) -> None:
        """Watch for this time, and write what was found."""
        begun = clock.monotonic()
        try:
            watch.start()
            try:
                while (left := begun + seconds - clock.monotonic()) > 0:
                    if ended.wait(min(REPORT_EVERY, left)):
                        self._leave({"state": "stopped"}, 1)
                        return
                    if not self._report({"state": "running", "seconds": round(clock.monotonic() - begun, 1)}):
                        return
                found = watch.found()
            finally:
                watch.end()
            found |= {"elsewhere": self._elsewhere}
            found |= {"state": "done", "seconds": round(clock.monotonic() - begun, 2), "version": __version__}
            self._leave(found, _ATTEMPTS, ended)
        except Exception as error:
            self._log.warn(error)
            self._leave({"state": "failed", "error": type(error).__name__}, 1)
        finally:
            self._broker.close()

    def _report(self, report: dict[str, Any]) -> bool:
        """Write how far it is; False when no client waits any more."""
        try:
            return self._broker.ask(
                verbs.executors.report_profile(self._keys, self._request, orjson.dumps(report))
            )
        except Exception as error:  # Redis may be reachable again before the end
            self._log.warn(error)
            return True

    def _leave(self, report: dict[str, Any], attempts: int, ended: threading.Event | None = None) -> None:
        body = orjson.dumps(report)
        for _ in range(attempts):
            try:
                self._broker.ask(verbs.executors.leave_profile(self._keys, self._request, body, _KEPT_MS))
            except Exception as error:
                self._log.warn(error)
                if ended is None or ended.wait(REPORT_EVERY):
                    return
            else:
                return


class Timing:
    """Samples in a thread of its own."""

    def __init__(self, state: State, loop: asyncio.AbstractEventLoop | None, loop_thread: int | None) -> None:
        self._samples = Samples(state.app, state.held, loop, loop_thread)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fennelq-sampler", daemon=True)
        self._reporter = threading.get_ident()
        self._failed: Exception | None = None

    def start(self) -> None:
        """Begin to sample."""
        self._reporter = threading.get_ident()
        self._thread.start()

    def end(self) -> None:
        """Stop sampling."""
        self._over.set()
        self._thread.join()

    def found(self) -> dict[str, Any]:
        """What was counted; raises the error of a sample."""
        self.end()
        if self._failed is not None:
            raise self._failed
        samples = self._samples
        jobs = dict(samples.jobs.most_common(20))
        head = {"memory": False, "samples": samples.taken, "idle": samples.idle, "jobs": jobs}
        return head | packed(samples.counted(), samples.left_out)

    def _run(self) -> None:
        before = sys.getswitchinterval()
        sys.setswitchinterval(min(before, _SWITCH))
        try:
            while not self._over.is_set():
                time.sleep(EVERY)  # not `wait`, which takes several times the CPU time
                if not self._samples.take([self._reporter], idle_too=False):
                    self._look_again()
        except Exception as error:
            self._failed = error
        finally:
            sys.setswitchinterval(before)

    def _look_again(self) -> None:
        """Take a sample of a loop that seems to wait. A busy loop with short turns polls its sockets all the time, and
        gives other threads their turn just there: so look again at random moments, and ask for the turn at once. A
        shorter interval all the time would cost several percent."""
        before = sys.getswitchinterval()
        sys.setswitchinterval(min(before, _AT_ONCE))
        try:
            for look in range(1, _LOOKS):
                time.sleep(random.random() * _BETWEEN)
                if self._samples.take([self._reporter], idle_too=look == _LOOKS - 1):
                    return
        finally:
            sys.setswitchinterval(before)


class Keeping:
    """Watches allocations."""

    def __init__(self, state: State) -> None:
        self._allocations = Allocations(state.app)

    def start(self) -> None:
        """Begin to watch."""
        self._allocations.start()

    def end(self) -> None:
        """Stop watching."""
        self._allocations.end()

    def found(self) -> dict[str, Any]:
        """What was allocated."""
        counted = self._allocations.counted()
        head: dict[str, Any] = {"memory": True, "samples": 0, "idle": 0, "jobs": {}}
        return head | packed(counted, self._allocations.left_out)


def packed(counted: list[Counted], left_out: int) -> dict[str, Any]:
    """The stacks in a form in which each place is written once. The rarest are left out when they do not fit."""
    tasks: dict[str, int] = {}
    places: dict[Place, int] = {}
    stacks: list[Any] = []
    parts: set[int] = set()
    size = 0
    for stack in counted:
        new = [place for place in stack.places if place not in places]
        size += 30 + 8 * len(stack.places) + sum(40 + 2 * len(place.function + place.file) for place in new)
        if size > _MOST_BYTES:
            left_out += stack.number
            continue
        task = tasks.setdefault(stack.task, len(tasks))
        if not stack.serves:
            parts.add(task)
        indexes = [places.setdefault(place, len(places)) for place in stack.places]
        stacks.append([task, stack.number, stack.own, indexes])
    return {
        "tasks": [*tasks],
        "parts": [*parts],
        "places": [[*place] for place in places],
        "stacks": stacks,
        "left_out": left_out,
    }
