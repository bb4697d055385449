"""The brokers of an app under test: they call the real scripts on a real server, by a clock that a test can move."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast

from fennelq.broker.blocking import BlockingBroker
from fennelq.broker.broker import ANSWER_TIMEOUT, Broker
from fennelq.broker.connection import Address
from fennelq.broker.verb import Command, Step, Verb
from fennelq.client import Client
from fennelq.model.wire import WireJob
from fennelq.result import AsyncResult
from fennelq.testing.clock import moved
from fennelq.testing.own_loop import in_a_loop
from fennelq.testing.recording import Recording
from fennelq.wiring import Wiring

if TYPE_CHECKING:
    from fennelq.app import App

A = TypeVar("A")
R = TypeVar("R")

RunNow = Callable[[Sequence[str]], Awaitable[None]]
"""Runs these jobs."""


class TestedBroker(Broker):
    """The broker of a client or an executor."""

    __test__ = False

    def __init__(self, address: Address, namespace: str, recording: Recording) -> None:
        super().__init__(address)
        self._namespace, self._recording = namespace, recording
        self._silent = False

    def fall_silent(self) -> None:
        """Send nothing any more. As in a process that was killed, no code goes on after a call."""
        self._silent = True

    async def run(self, verb: Verb[A], within: float = ANSWER_TIMEOUT) -> A:
        """Send a verb, unless its executor was killed."""
        self._check()
        if losses := self._recording.losses(verb):
            await self.run(losses.handing_back, within)
            written = await super().run(self._moved(losses.writing), within) if losses.writing else []
            return cast("A", losses.answers(written))
        reply = await super().run(self._moved(verb), within)
        self._recording.note(verb, reply)
        return reply

    async def ask(self, command: Command[A], within: float = ANSWER_TIMEOUT) -> A:
        """Send a command, unless its executor was killed."""
        self._check()
        return await super().ask(self._moved(command), within)

    def _moved(self, step: A) -> A:
        return cast("A", moved(cast("Step[Any]", step), self._namespace))

    def _check(self) -> None:
        if self._silent:
            raise asyncio.CancelledError


class TestedBlockingBroker(BlockingBroker):
    """The broker of code without an event loop, and of a heartbeat."""

    __test__ = False

    def __init__(self, address: Address, namespace: str, recording: Recording, run_now: RunNow) -> None:
        super().__init__(address)
        self._namespace, self._recording, self._run_now = namespace, recording, run_now

    def run_each(self, steps: Sequence[Step[A]], timeout: float = ANSWER_TIMEOUT) -> list[A | Exception]:
        """Send verbs or commands by the clock of the test; with `eager`, the jobs that they create have run."""
        replies = super().run_each([moved(step, self._namespace) for step in steps], timeout)
        created: list[str] = []
        for step, reply in zip(steps, replies, strict=True):
            if isinstance(step, Verb) and not isinstance(reply, Exception):
                created += self._recording.note(step, reply)
        if to_run := self._recording.to_run(created):
            in_a_loop(lambda: self._run_now(to_run))
        return replies

    def ask(self, command: Command[A], timeout: float = ANSWER_TIMEOUT) -> A:
        """Send a command by the clock of the test."""
        return super().ask(cast("Command[A]", moved(command, self._namespace)), timeout)


class TestedClient(Client):
    """The sending side of an app under test."""

    __test__ = False

    def __init__(self, app: App, recording: Recording, run_now: RunNow) -> None:
        super().__init__(app)
        self._recording, self._run_now = recording, run_now
        self._closing = self._until_closed()
        with suppress(StopIteration):
            self._closing.__anext__().send(None)  # begins it, up to its `yield`

    async def close(self) -> None:
        """Finish the calls under way, then close every connection."""
        await self._closing.aclose()

    async def _until_closed(self) -> AsyncGenerator[None]:
        # `asyncio.run`, and the runners of test plugins, close the generators of a loop before they close the loop. So
        # the connections are closed although a fixture without a loop cannot do it.
        try:
            yield
        finally:
            await super().close()

    async def send(self, job: WireJob[R]) -> AsyncResult[R]:
        """Send one job; with `eager`, it has run when this returns."""
        result = await super().send(job)
        await self._run_now(self._recording.to_run([result.id]))
        return result

    async def send_all(self, jobs: Sequence[WireJob[R]]) -> list[AsyncResult[R]]:
        """Send many jobs; with `eager`, they have run when this returns."""
        results = await super().send_all(jobs)
        await self._run_now(self._recording.to_run(result.id for result in results))
        return results


class TestedWiring(Wiring):
    """Makes these parts for one block of `testing(app)`."""

    __test__ = False

    def __init__(self, namespace: str, recording: Recording, run_now: RunNow) -> None:
        self.recording, self._namespace, self._run_now = recording, namespace, run_now
        self._blocking: list[TestedBlockingBroker] = []

    def client(self, app: App) -> TestedClient:
        """The sending side for one event loop."""
        return TestedClient(app, self.recording, self._run_now)

    def broker(self, address: Address) -> TestedBroker:
        """Runs verbs on an event loop."""
        return TestedBroker(address, self._namespace, self.recording)

    def blocking(self, address: Address) -> TestedBlockingBroker:
        """Runs verbs without an event loop."""
        made = TestedBlockingBroker(address, self._namespace, self.recording, self._run_now)
        self._blocking.append(made)
        return made

    def close(self) -> None:
        """Close the connections without an event loop: those of the app, and of the heartbeats of executors that have
        ended."""
        for broker in self._blocking:
            broker.close()
