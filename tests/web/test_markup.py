"""The pages as text: every element that is opened is closed, in the right order."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Final

import pytest

from tests.web.kit import Browser, Shop, main_of, text_of
from tests.web.test_browser import paths_of

pytestmark = pytest.mark.audit(unfinished=True)

_EMPTY: Final = frozenset(("meta", "link", "input", "br", "hr", "img"))
_DRAWN: Final = frozenset(("path", "rect", "line", "circle"))
"""Elements of drawings, which are closed where they begin."""


class Outline(HTMLParser):
    """Collects what is not closed, or closed without a beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.open, self.problems = list[str](), list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()
        elif tag not in _EMPTY:
            self.problems.append(f"</{tag}> in {'/'.join(self.open)}, line {self.getpos()[0]}")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _DRAWN | _EMPTY:
            self.problems.append(f"<{tag}/>, line {self.getpos()[0]}")


async def test_every_element_is_closed(shop: Shop, pages: Browser) -> None:
    await shop.app.schedules.add(shop.welcome.job(1), name="nightly", cron="0 9 * * 1-5", tz="Europe/Paris")
    paths = {**await paths_of(shop, "web-1"), "schedule": "/schedules/nightly"}
    paths |= {"day": "/?hours=24", "other": "/schedules/nightly/remove"}
    for name, path in paths.items():
        outline = Outline()
        outline.feed((await pages.get(path)).text)
        outline.close()
        assert (outline.problems, outline.open) == ([], []), name


async def test_a_group_says_how_many_jobs_it_has(shop: Shop, pages: Browser) -> None:
    page = text_of(main_of((await pages.get(f"/dead/{await shop.group()}")).text))
    assert "RuntimeError in shop:charge" in page
    assert "3 jobs no money for order 1" in page


async def test_a_signature_is_shown_as_it_is_written(shop: Shop, pages: Browser) -> None:
    page = text_of((await pages.get("/tasks/shop:welcome")).text)
    assert "welcome(user_id: int, greeting: str = 'hello')" in page
    assert "user_id int" in text_of((await pages.get("/tasks/shop:welcome/send")).text)
