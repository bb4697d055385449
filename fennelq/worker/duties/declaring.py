"""Declares the schedules of the code, a page at a time."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Literal

from fennelq import clock, log
from fennelq.broker import verbs
from fennelq.broker.dispatch import Limits, first_page, in_pages, raise_first
from fennelq.broker.keys import AppKeys
from fennelq.broker.talk import Talk, ask
from fennelq.broker.verbs.schedules import Declared, Look
from fennelq.model.schedule import WireSchedule
from fennelq.worker.state import State

_logger = log.get("fennelq.ticker")
_MOST_NAMED = 20
_DECLARE_AGAIN = 10.0
_DECLARED = Limits(verbs.schedules.MOST_DECLARED, verbs.schedules.MOST_DECLARED_BYTES)


class Declaration:
    """Updates the schedules of a service in Redis to those of its code, a page at a time."""

    def __init__(self, state: State) -> None:
        self.service = state.app.service
        """The service that owns the declared schedules."""
        self._keys, self._broker, self._app = AppKeys(state.namespace), state.broker, state.app
        self._at, self._not_before, self._refused = 0, 0.0, False
        self._denied: dict[str, str] = {}

    @cached_property
    def version(self) -> str:
        """The version of the code: a digest of all schedules that it declares."""
        return hashlib.sha1(b"\n".join(sorted(s.to_wire() for s in self._all))).hexdigest()

    async def go_on(self, look: Look) -> bool:
        """Declare a page, if schedules are left to declare; True when more may be left."""
        now = clock.monotonic()
        if look.version == self.version:
            if look.denied and now >= self._not_before:
                self._not_before = now + _DECLARE_AGAIN
                await self._ask_again(look.now_ms)
            return False
        # Another version of the code is the holder. It may have ended by now, so ask again, but only from time to time.
        if look.version and now < self._not_before:
            return False
        return await self._declare_page(look.now_ms)

    @cached_property
    def _all(self) -> list[WireSchedule]:
        """All schedules, in the same order in every executor: where one executor has stopped, another continues."""
        return sorted(self._app.declared.schedules.values(), key=lambda schedule: schedule.name)

    async def _declare_page(self, now_ms: int) -> bool:
        page = first_page(self._all[self._at : self._at + _DECLARED.items], _size, _DECLARED)
        done = await self._broker.converse(self._declare(page, self._at, now_ms))
        if done.state == "held":
            self._log_refused()
        if done.state != "open":
            self._not_before = 0.0 if done.state == "done" else clock.monotonic() + _DECLARE_AGAIN
        self._at = done.at if done.state == "open" else 0
        return True

    async def _ask_again(self, now_ms: int) -> None:
        """Declare again the schedules that belong to another service: it may have ended, or not declare them any
        more."""
        denied = await self._broker.ask(verbs.schedules.denied(self._keys, self.service))
        mine = [schedule for schedule in self._all if schedule.name in denied]

        def again(page: list[WireSchedule]) -> Talk[list[Declared]]:
            return [(yield from self._declare(page, "again", now_ms))] * len(page)

        raise_first(await self._broker.converse(in_pages(mine, again, _size, limits=_DECLARED)))
        left = await self._broker.ask(verbs.schedules.denied(self._keys, self.service))
        self._log_denied({name: owner for name, owner in left.items() if owner})

    def _declare(self, page: list[WireSchedule], at: int | Literal["again"], now_ms: int) -> Talk[Declared]:
        declared = [(schedule.name, schedule.to_wire(), schedule.next_after(now_ms)) for schedule in page]
        verb = verbs.schedules.declare(
            self._keys,
            self.service,
            self.version,
            verbs.schedules.PATIENCE_MS,
            declared,
            at=at,
            total=len(self._all),
        )
        done = yield from ask(verb)
        if done.removed:
            _logger.warning("schedules_removed", service=self.service, schedules=done.removed)
        return done

    def _log_refused(self) -> None:
        if not self._refused:
            _logger.info(
                "schedules_of_a_later_version_hold", service=self.service, declared_here=len(self._all)
            )
        self._refused = True

    def _log_denied(self, denied: dict[str, str]) -> None:
        if denied != self._denied:
            self._denied = denied
            if denied:
                named = dict(sorted(denied.items())[:_MOST_NAMED])
                _logger.warning(
                    "schedules_of_another_service",
                    service=self.service,
                    schedules=named,
                    number=len(denied),
                    hint="they run as the other service declares them: change name= in one of the two services",
                )


def _size(schedule: WireSchedule) -> int:
    return len(schedule.args) + len(schedule.options) + 500
