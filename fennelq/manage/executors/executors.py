"""The executors of an app: the facts that they report, and the questions that they answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fennelq.broker import verbs
from fennelq.broker.talk import Talk, ask_all
from fennelq.broker.verb import Step
from fennelq.errors import ConfigurationError, ExecutorUnavailable, UnknownExecutor
from fennelq.executors import Executors as Reported
from fennelq.manage.executors.asking import answer_of
from fennelq.manage.executors.info import ExecutorInfo, ExecutorStacks
from fennelq.manage.executors.profile import ExecutorProfile
from fennelq.manage.executors.profiling import profile_of, profiling_of
from fennelq.manage.offered import Awaiting, Blocking, Family, Operation
from fennelq.manage.queues.pausing import this_user
from fennelq.model.questions import DRAIN, LONGEST_GRACE, STACKS, Drain, new_question
from fennelq.model.units import Seconds, seconds
from fennelq.waiting.reasons import executors_of

# Defined here, because inside the class `list` is a method.
Infos = list[ExecutorInfo]


class ExecutorTalks(Family):
    """The operations on executors."""

    _attribute = "executors"

    @Operation
    def list(self) -> Talk[Infos]:
        """The executors that have reported themselves within the last hour, by name; an empty list when the user of
        Redis may not read them."""
        known = yield from executors_of(self._app.namespace)
        return executor_infos(known)

    @Operation
    def info(self, name: str) -> Talk[ExecutorInfo]:
        """One executor, by its name or by the beginning of it. Raises UnknownExecutor when none has this name, and when
        several do."""
        return (yield from self._find(name))

    @Operation
    def stacks(self, name: str) -> Talk[ExecutorStacks]:
        """Ask an executor for the stacks of its threads and asyncio tasks, and the job that each of them serves. A
        thread answers, also while code blocks the event loop. `name` may be the beginning of the name.

        Raises UnknownExecutor, and ExecutorUnavailable when it does not answer within 10 seconds."""
        executor = yield from self._find(name)
        answer = yield from answer_of(self._app.namespace, executor, new_question(STACKS))
        if answer is None:
            raise ExecutorUnavailable(executor.name, "has ended in the meantime")
        return ExecutorStacks.of(executor.name, answer)

    @Operation
    def profile(
        self,
        name: str,
        *,
        seconds: Seconds = 10,
        task: str | None = None,
        memory: bool = False,
        who: str | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> Talk[ExecutorProfile]:
        """Ask an executor to count for some seconds which code runs, and for which task: 100 times a second, a thread
        of the executor looks at all its stacks. `name` may be the beginning of the name.

        `task` leaves out other tasks; it is the whole name of a task, or that of its function. With `memory`, the
        executor counts the bytes that code allocates and does not free, which slows it down while it lasts.
        `progress` is called with the seconds that have passed. `who` is named in the error of a user who requests a
        profile meanwhile; by default it is the user and the host. When this call ends early, the executor ends the
        profile within ten seconds.

        Raises UnknownExecutor, and ExecutorUnavailable when it does not answer within 10 seconds, is being profiled
        already, or ends before the profile is ready."""
        wanted = profiling_of(seconds, memory=memory, who=this_user() if who is None else who)
        executor = yield from self._find(name)
        profile = yield from profile_of(self._app.namespace, executor, wanted, progress)
        return profile if task is None else profile.of_task(task)

    @Operation
    def drain(self, name: str, *, replace: bool = False, grace: Seconds | None = None) -> Talk[int]:
        """Ask an executor to take no more jobs, to finish those that run, and to end. Returns the number of jobs that
        run, as soon as it has agreed. `name` may be the beginning of the name.

        Running jobs get `grace` seconds, by default the grace period of its worker; the others are handed back.

        With `replace`, its worker starts a new executor in its place. Otherwise it starts none, and ends when its last
        executor has ended.

        Raises UnknownExecutor, and ExecutorUnavailable when it does not answer within 10 seconds: then it does not
        drain."""
        how = Drain(replace, None if grace is None else grace_of(grace))
        executor = yield from self._find(name)
        question = new_question(DRAIN, how.more)
        answer = yield from answer_of(self._app.namespace, executor, question)
        running = 0 if answer is None else answer.get("running")
        return running if isinstance(running, int) else 0

    def _find(self, name: str) -> Talk[ExecutorInfo]:
        app = self._app.namespace
        steps: list[Step[Any]] = [verbs.server.now(), verbs.executors.facts(app, name)]
        now, raw = yield from ask_all(steps)
        if raw is not None:
            return executor_infos(Reported({name: raw}, now))[0]
        known = yield from executors_of(app)
        return _matching(name, executor_infos(known))


class Executors(ExecutorTalks, Awaiting):
    """The executors of an app: the processes that run its jobs."""


class BlockingExecutors(ExecutorTalks, Blocking):
    """The executors of an app, for code without an event loop: `app.sync.executors`."""


def executor_infos(known: Reported | None) -> Infos:
    """The executors that are known, by name; an empty list when the user of Redis may not read them."""
    if known is None:
        return []
    return [ExecutorInfo(name, known.state(name), facts) for name, facts in known.facts.items()]


def grace_of(grace: Seconds) -> float:
    """The seconds of a grace period; raises ConfigurationError when it is not valid."""
    if not 0 <= (found := seconds(grace)) <= LONGEST_GRACE:
        raise ConfigurationError(
            f"grace is {found:g} s: use the seconds that running jobs get, from 0 to ten years"
        )
    return found


def _matching(name: str, infos: Infos) -> ExecutorInfo:
    """The executor whose name begins like this. It considers executors that have ended only if no living one
    matches."""
    for some in ([one for one in infos if one.alive], infos):
        found = [one for one in some if name and one.name.startswith(name)]
        if len(found) > 1:
            raise UnknownExecutor(name, matching=[one.name for one in found])
        if found:
            return found[0]
    raise UnknownExecutor(name, known=[one.name for one in infos])
