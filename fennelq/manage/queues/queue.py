"""One queue of an app: the operations of `app.queues`, without its name in each call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fennelq.model.checks import valid_name

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.manage.queues.info import QueueInfo
    from fennelq.manage.queues.queues import OnProgress, Place
    from fennelq.manage.running import RunningJob
    from fennelq.model.job import JobInfo
    from fennelq.model.pause import QueuePause, QueueSide


class Queue:
    """One queue of an app: `app.queue("mail")`. Each method does what the method of `app.queues` with the same name
    does for this queue."""

    name: str

    def __init__(self, app: App, name: str) -> None:
        self._app, self.name = app, valid_name("queue", name)

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"

    async def info(self) -> QueueInfo:
        """The numbers of its jobs, by state, and whether it is paused."""
        return await self._app.queues.info(self.name)

    async def peek(self, limit: int = 10, place: Place = "waiting") -> list[JobInfo]:
        """Its next jobs, in the order in which workers will take them. They stay in the queue."""
        return await self._app.queues.peek(self.name, limit, place)

    async def running(self, *, limit: int | None = 100) -> list[RunningJob]:
        """Its jobs that run, those that run longest first; `limit=None` returns all."""
        return await self._app.queues.running(self.name, limit=limit)

    async def purge(self, progress: OnProgress | None = None) -> int:
        """Cancel its jobs that wait, are scheduled, or wait for their next try; returns how many."""
        return await self._app.queues.purge(self.name, progress)

    async def pause(
        self, *, only: QueueSide | None = None, why: str = "", who: str | None = None
    ) -> QueuePause:
        """Pause it: executors start none of its jobs, and callers that send jobs to it get a QueuePaused.

        With `only="consume"`, callers may send; with `only="enqueue"`, executors go on. Raises UnknownQueue.
        """
        return await self._app.queues.pause(self.name, only=only, why=why, who=who)

    async def resume(self, *, only: QueueSide | None = None) -> QueuePause | None:
        """End its pause, or only that of one side, and wake its executors. Returns what was paused; None when nothing
        was. Raises UnknownQueue."""
        return await self._app.queues.resume(self.name, only=only)


class BlockingQueue:
    """One queue of an app, for code without an event loop: `app.sync.queue("mail")`."""

    name: str

    def __init__(self, app: App, name: str) -> None:
        self._app, self.name = app, valid_name("queue", name)

    def __repr__(self) -> str:
        return f"<BlockingQueue {self.name}>"

    def info(self) -> QueueInfo:
        """The numbers of its jobs, by state, and whether it is paused."""
        return self._app.sync.queues.info(self.name)

    def peek(self, limit: int = 10, place: Place = "waiting") -> list[JobInfo]:
        """Its next jobs, in the order in which workers will take them. They stay in the queue."""
        return self._app.sync.queues.peek(self.name, limit, place)

    def running(self, *, limit: int | None = 100) -> list[RunningJob]:
        """Its jobs that run, those that run longest first; `limit=None` returns all."""
        return self._app.sync.queues.running(self.name, limit=limit)

    def purge(self, progress: OnProgress | None = None) -> int:
        """Cancel its jobs that wait, are scheduled, or wait for their next try; returns how many."""
        return self._app.sync.queues.purge(self.name, progress)

    def pause(self, *, only: QueueSide | None = None, why: str = "", who: str | None = None) -> QueuePause:
        """Pause it: executors start none of its jobs, and callers that send jobs to it get a QueuePaused.

        With `only="consume"`, callers may send; with `only="enqueue"`, executors go on. Raises UnknownQueue.
        """
        return self._app.sync.queues.pause(self.name, only=only, why=why, who=who)

    def resume(self, *, only: QueueSide | None = None) -> QueuePause | None:
        """End its pause, or only that of one side, and wake its executors. Returns what was paused; None when nothing
        was. Raises UnknownQueue."""
        return self._app.sync.queues.resume(self.name, only=only)
