"""Answers questions of people about this executor, in a thread: the most interesting one is where a blocked loop hangs.

While the loop works, the listener receives the questions, so that an idle executor needs no further connection. While
the loop is blocked, the deputy listens on a connection of its own, and reports the facts of the executor, which would
look silent otherwise.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress
from typing import Any, Final

import orjson

from fennelq import __version__, clock
from fennelq.broker import verbs
from fennelq.broker.blocking import BlockingBroker
from fennelq.broker.ear import Ear
from fennelq.broker.keys import AppKeys
from fennelq.executors import recent_of
from fennelq.model.questions import DRAIN, PROFILE, STACKS, Drain, Question
from fennelq.worker import stacks
from fennelq.worker.bus import DrainAsked, LoopWorksAgain, QuestionAsked
from fennelq.worker.memory import resident_bytes
from fennelq.worker.outage import LogThrottle
from fennelq.worker.state import State
from fennelq.worker.threads.profiler import Profiler

_MOST_WAITING: Final = 20
"""Questions that wait for an answer. Any client may publish any number of them."""
_REMEMBERED: Final = 100
"""Questions that were answered: each is published several times, because a message may get lost."""
_KEPT_MS: Final = 60_000
"""How long an answer is kept for the client that has asked."""
_LISTEN_FOR: Final = 0.25
PAUSE: Final = 1.0
"""Seconds after an error."""


class Deputy:
    """The thread that answers."""

    def __init__(self, state: State, broker: BlockingBroker) -> None:
        self._state, self._vitals, self._broker = state, state.vitals, broker
        self._keys = AppKeys(state.namespace)
        self._waiting: deque[Question] = deque(maxlen=_MOST_WAITING)
        self._answered: deque[str] = deque(maxlen=_REMEMBERED)
        self._profiler = Profiler(state)
        self._report_at = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: int | None = None
        self._ended = threading.Event()
        self._gone = asyncio.Event()
        self._log = LogThrottle("answering questions", state.outage)
        state.bus.subscribe(QuestionAsked, lambda asked: self._hear(asked.text))
        self._thread = threading.Thread(target=self._run, name="fennelq-deputy", daemon=True)

    def start(self) -> None:
        """Begin to answer, about the loop of this thread."""
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        self._thread.start()

    def end(self) -> None:
        """Stop answering."""
        self._ended.set()
        self._profiler.end()
        self._vitals.wakes.set()

    async def gone(self, within: float) -> None:
        """Returns when its thread has ended, so that it reports nothing any more; after `within` seconds in any case:
        Redis may not answer it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._gone.wait()

    @property
    def profiles(self) -> bool:
        """Whether it makes a profile now."""
        return self._profiler.busy

    def work(self) -> None:
        """Answer the questions that wait; while the loop is blocked, listen to further ones, and report."""
        self._answer_all()
        if self._vitals.blocked:
            try:
                self._stand_in()
            finally:
                self._end_report()

    def _run(self) -> None:
        try:
            self._work_on()
        finally:
            self._profiler.gone()
            if self._loop is not None:
                with suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._gone.set)

    def _work_on(self) -> None:
        while True:
            self._vitals.wakes.wait()
            self._vitals.wakes.clear()
            if self._ended.is_set():
                return
            try:
                self.work()
                self._log.over()
            except Exception as error:
                self._log.warn(error)
                self._ended.wait(PAUSE)
                if self._vitals.blocked or self._waiting:
                    self._vitals.wakes.set()
            finally:
                # It is needed seldom: an idle executor keeps no connection for it. An error of the end of a connection
                # must not end the thread.
                with suppress(Exception):
                    self._broker.close()

    def _hear(self, text: str) -> None:
        question = Question.read(text)
        # Any client may publish anything on the channel of an executor.
        if question is None or question.request in self._answered:
            return
        self._waiting.append(question)
        self._vitals.wakes.set()

    # While the loop is blocked

    def _stand_in(self) -> None:
        self._report()  # also when it may not listen
        with Ear(self._broker.address, self._keys.questions(self._state.name)) as ear:
            while self._vitals.blocked and not self._ended.is_set():
                self._report()
                message = ear.message(_LISTEN_FOR)
                if message is not None:
                    self._hear(message.decode("utf-8", "replace"))
                self._answer_all()

    def _report(self) -> None:
        """Report what the executor has last reported, and what blocks its loop."""
        now = clock.monotonic()
        if now < self._report_at or not self._vitals.facts:
            return
        settings = self._state.settings
        self._report_at = now + settings.beat
        facts = {
            **self._vitals.facts,
            **self._vitals.blockage(),
            "uptime": round(now - self._state.started, 1),
            "rss": resident_bytes(),
        }
        recent = recent_of(settings.lease)
        self._broker.run(verbs.executors.present(self._keys, self._state.name, orjson.dumps(facts), recent))

    def _end_report(self) -> None:
        if not self._vitals.blocked:
            # The facts say that the loop is blocked: let it report itself.
            self._report_at = 0.0
            with suppress(RuntimeError):  # the loop is closed
                self._state.bus.publish_from_thread(LoopWorksAgain())

    # Answers

    def _answer_all(self) -> None:
        while self._waiting and not self._ended.is_set():
            question = self._waiting.popleft()
            if question.request in self._answered:
                continue
            try:
                self._answer(question)
            except Exception:
                # The reply may be lost, and the client has its answer: then it does not ask again.
                self._waiting.appendleft(question)
                raise
            self._answered.append(question.request)

    def _answer(self, question: Question) -> None:
        answer = {"version": __version__, **self._about(question), **self._vitals.blockage()}
        wanted = self._broker.ask(
            verbs.executors.leave_answer(self._keys, question.request, orjson.dumps(answer), _KEPT_MS)
        )
        # A question may arrive late, for example at a process that was stopped for an hour. If the client does not wait
        # any more, it has told its user that nothing was done.
        if wanted and question.word == DRAIN:
            self._state.bus.publish_from_thread(DrainAsked(Drain.read(question.more)))
        elif wanted and "profiling" in answer:
            broker = BlockingBroker(self._broker.address)
            self._profiler.start(question, broker, self._loop, self._loop_thread)

    def _about(self, question: Question) -> dict[str, Any]:
        if question.word == STACKS:
            found = stacks.read(self._state.held, self._loop, self._loop_thread, clock.monotonic())
            return {"stacks": [stack._asdict() for stack in found.stacks], "left_out": found.left_out}
        if question.word == DRAIN:
            return {"running": self._state.slots.taken}
        if question.word == PROFILE:
            return self._profiler.answer(question)
        return {"unknown": question.word}
