"""`fennelq top` without a terminal: what is on its screen, and a person who presses keys."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from textual.pilot import Pilot

from fennelq import App
from fennelq.cli.top import looking, once
from fennelq.cli.top.program import Top
from fennelq.manage import watch
from tests.kit.waiting import NeverHappened, aeventually

QUICK = 0.02
WITHIN = 15.0


class Person:
    """Someone before the screen."""

    def __init__(self, top: Top, pilot: Pilot[int]) -> None:
        self.top, self._pilot = top, pilot

    @property
    def lines(self) -> list[str]:
        """What is on the screen."""
        strips = self.top.screen._compositor.render_strips()
        return ["".join(segment.text for segment in strip).rstrip() for strip in strips]

    @property
    def text(self) -> str:
        """The same as one text."""
        return "\n".join(self.lines)

    async def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        await self._pilot.press(*keys)

    async def type(self, text: str) -> None:
        """Type a text."""
        names = {" ": "space", ":": "colon", '"': "quotation_mark", "-": "minus", ".": "full_stop"}
        await self._pilot.press(*(names.get(letter, letter) for letter in text))

    async def sees(self, *texts: str) -> str:
        """Returns the screen as soon as it has all of these."""
        try:
            await aeventually(lambda: all(one in self.text for one in texts), within=WITHIN)
        except NeverHappened:
            missing = [one for one in texts if one not in self.text]
            raise AssertionError(f"not on the screen: {missing}\n{self.text}") from None
        return self.text

    async def sees_no(self, text: str) -> None:
        """Returns when this is not on the screen."""
        await aeventually(lambda: text not in self.text, within=WITHIN)


@asynccontextmanager
async def before_the_screen(app: App, *, columns: int = 120, rows: int = 40) -> AsyncGenerator[Person]:
    """A person before the screen of `fennelq top` for this app, which is open."""
    top = Top(app)
    async with top.run_test(size=(columns, rows)) as pilot:
        yield Person(top, pilot)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks follow each other at once: how often it looks is the subject of other tests."""
    for module in (looking, watch):
        monkeypatch.setattr(module, "SHORTEST", QUICK)
        monkeypatch.setattr(module, "SHARE", 1)
    monkeypatch.setattr(once, "SHARE", 1)
