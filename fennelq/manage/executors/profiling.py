"""Asks an executor for a profile, and waits until it is ready: a conversation.

While it waits, it renews the key for the profile again and again. So the executor learns within seconds when the client
is gone, however it has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.keys import AppKeys
from fennelq.broker.talk import Talk, ask, ask_all, pause
from fennelq.broker.verb import Step
from fennelq.errors import ConfigurationError, ExecutorUnavailable
from fennelq.executors import Facts, facts_of
from fennelq.manage.executors.asking import answer_of
from fennelq.manage.executors.info import ExecutorInfo
from fennelq.manage.executors.profile import ExecutorProfile
from fennelq.model.questions import LONGEST_PROFILE, PROFILE, Profiling, new_question
from fennelq.model.times import shown
from fennelq.model.units import Seconds, seconds

ROOM_MS: Final = 10_000
"""How long the room for a profile stays when the client does not renew it."""
SILENT_AFTER: Final = 5.0
"""Seconds without a report, of which an executor writes one a second, after which the client gives up."""
_SILENT_AFTER_MEMORY: Final = 60.0
"""The same at the end of a profile of memory: while it counts the allocations, no other thread of the executor runs."""
_LOOK_EVERY: Final = 0.25
_SHORTEST: Final = 0.1
_MOST_TEXT: Final = 200

Progress = Callable[[float], None]


def profiling_of(given: Seconds, *, memory: bool, who: str) -> Profiling:
    """How to profile; raises ConfigurationError for a time that is not valid."""
    if not _SHORTEST <= (found := seconds(given)) <= LONGEST_PROFILE:
        raise ConfigurationError(
            f"seconds is {found:g}: a profile takes from {_SHORTEST:g} to {LONGEST_PROFILE:g} seconds"
        )
    return Profiling(found, memory, who)


def profile_of(
    app: str, executor: ExecutorInfo, wanted: Profiling, progress: Progress | None
) -> Talk[ExecutorProfile]:
    """The profile of an executor. Raises ExecutorUnavailable when it cannot make one, or does not finish it."""
    keys, question = AppKeys(app), new_question(PROFILE, wanted.more)
    yield from ask(verbs.executors.await_profile(keys, question.request, 2 * ROOM_MS))
    answer = yield from answer_of(app, executor, question)
    if answer is None:
        raise ExecutorUnavailable(executor.name, "has ended in the meantime")
    _check_begins(executor, answer)
    silent_after = _SILENT_AFTER_MEMORY if wanted.memory else SILENT_AFTER
    report = yield from _awaited(keys, executor, question.request, progress, silent_after)
    yield from ask(verbs.executors.drop_profile(keys, question.request))
    return _checked(executor, report)


def _awaited(
    keys: AppKeys, executor: ExecutorInfo, request: str, progress: Progress | None, silent_after: float
) -> Talk[Facts]:
    """The last report of the executor about this profile."""
    before, heard = b"", clock.monotonic()
    while True:
        yield from pause(_LOOK_EVERY)
        steps: list[Step[Any]] = [
            verbs.executors.profile(keys, request),
            verbs.executors.keep_profile(keys, request, ROOM_MS),
        ]
        raw, _ = yield from ask_all(steps)
        if raw is None:
            raise ExecutorUnavailable(executor.name, "was asked for a profile, and its key in Redis is gone")
        if raw != before:
            before, heard = raw, clock.monotonic()
            report = facts_of(raw)
            if report.get("state") != "running":
                return report
            _tell(progress, report)
        elif clock.monotonic() - heard > silent_after / 2:
            yield from _check_lives(keys, executor)
            if clock.monotonic() - heard > silent_after:
                # An executor that goes on later finds no room for the profile, and ends it.
                yield from ask(verbs.executors.drop_profile(keys, request))
                raise ExecutorUnavailable(
                    executor.name,
                    f"has not reported on the profile for {silent_after:g} s. Its process is stopped or was "
                    "killed, its machine is overloaded, it has lost its connection to Redis, or a library holds the "
                    "interpreter",
                )


def _check_lives(keys: AppKeys, executor: ExecutorInfo) -> Talk[None]:
    """Raises ExecutorUnavailable when the executor has ended."""
    raw = yield from ask(verbs.executors.facts(keys.app, executor.name))
    died = None if raw is None else facts_of(raw).get("died")
    if raw is None or isinstance(died, str):
        how = f": {died[:_MOST_TEXT]}" if died else ""
        raise ExecutorUnavailable(executor.name, f"has ended before the profile was ready{how}")


def _check_begins(executor: ExecutorInfo, answer: Facts) -> None:
    busy: Any = answer.get("busy")
    if isinstance(busy, dict):
        found = orjson.loads(orjson.dumps(busy))
        who, left = found.get("who"), found.get("left")
        by = f" by {who[:_MOST_TEXT]}" if isinstance(who, str) and who else ""
        more = f", for {shown(left)} more" if isinstance(left, int | float) and shown(left) else ""
        raise ExecutorUnavailable(executor.name, f"is being profiled{by}{more}: ask again after that")
    if "profiling" not in answer:
        why = str(answer.get("refused", "it has given no reason"))[:_MOST_TEXT]
        raise ExecutorUnavailable(executor.name, f"refuses to be profiled: {why}")


def _checked(executor: ExecutorInfo, report: Facts) -> ExecutorProfile:
    state = report.get("state")
    if state == "done":
        return ExecutorProfile.of(executor.name, report)
    if state == "stopped":
        raise ExecutorUnavailable(executor.name, "stops, and has ended the profile")
    why = str(report.get("error", "its report cannot be read"))[:_MOST_TEXT]
    raise ExecutorUnavailable(executor.name, f"has failed to make the profile: {why}")


def _tell(progress: Progress | None, report: Facts) -> None:
    passed = report.get("seconds")
    if progress is not None and isinstance(passed, int | float):
        progress(float(passed))
