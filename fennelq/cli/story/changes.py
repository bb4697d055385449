"""`fennelq job show --follow`: prints each change of a job, until the job has ended."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from fennelq.cli import output
from fennelq.cli.exits import Interrupted
from fennelq.cli.following import LAST_REPORT, Display, show_progress
from fennelq.cli.story import table as story_table
from fennelq.errors import BrokerUnavailable, FennelqError
from fennelq.manage.documents import Document, of_line
from fennelq.model.happened import StoryLine
from fennelq.model.job import JobInfo
from fennelq.model.story import Story

if TYPE_CHECKING:
    from fennelq.app import App

_EVERY: Final = 1.0
"""Seconds between two looks at a job that goes on."""
_NUMBERS: Final = re.compile(r"\d[\d,.]*")


class Known(NamedTuple):
    """Everything known about a job at one moment."""

    info: JobInfo
    story: Story
    document: Document
    """The same for `--json`, with its result."""


Look = Callable[[], Awaitable[Known]]


class View(Protocol):
    """Where the changes are shown."""

    def opening(self, known: Known) -> None:
        """Show everything that is known when the command begins."""
        ...

    def happened(self, line: StoryLine) -> None:
        """Show what happened."""
        ...

    def sentence(self, story: Story) -> None:
        """Show where the job is now."""
        ...

    def end(self, known: Known) -> None:
        """Show how it ended."""
        ...


async def watched(app: App, job: str, look: Look, view: View, display: Display) -> Known:
    """Show a job until it has ended; returns what is known then. Retries until Redis is reachable again."""
    showing = asyncio.ensure_future(show_progress(app, job, display))
    try:
        known = await _each_change(app, job, _patient(look), view, display)
        await asyncio.wait([showing], timeout=LAST_REPORT)
    except asyncio.CancelledError:  # only Ctrl-C cancels a command
        sentence = f"Interrupted: job {job} goes on; `fennelq job show {job} --follow` follows it again."
        raise Interrupted(sentence, at_line_start=display.close()) from None
    finally:
        showing.cancel()
        display.close()
    view.end(known)
    return known


async def _each_change(app: App, job: str, look: Look, view: View, display: Display) -> Known:
    known = await look()
    view.opening(known)
    shown, gist = set(map(_core, known.story.lines)), _gist(known.story)
    while not known.info.status.ended:
        await _until_it_ends(app, job)
        known = await look()
        news = [line for line in known.story.lines if _core(line) not in shown]
        if news or _gist(known.story) != gist:
            display.close()
        for line in news:
            view.happened(line)
        if _gist(known.story) != gist and not known.info.status.ended:
            view.sentence(known.story)
        shown.update(map(_core, news))
        gist = _gist(known.story)
    return known


def _core(line: StoryLine) -> tuple[datetime | None, str]:
    """The part of a line that stays: only the latest failure has a message."""
    return line.at, line.text.partition(":")[0].partition(",")[0]


def _gist(story: Story) -> str:
    """The sentence without its numbers: those change from second to second."""
    return _NUMBERS.sub("", story.sentence)


async def _until_it_ends(app: App, job: str) -> None:
    """Return when the job ends, or after a second."""
    with suppress(FennelqError):
        await app.client.end_within(job, _EVERY)
        return
    await asyncio.sleep(_EVERY)


def _patient(look: Look) -> Look:
    """The same look, which retries until Redis is reachable again."""

    async def patiently() -> Known:
        noted = False
        while True:
            try:
                return await look()
            except BrokerUnavailable as error:
                if not error.retriable:
                    raise
                if not noted:
                    output.note(f"fennelq: {error} The command goes on when Redis is reachable again.")
                noted = True
            await asyncio.sleep(_EVERY)

    return patiently


class Texts:
    """The changes for people and pipes: a line for each, after everything that is known."""

    def __init__(self, opening: Callable[[Known], Any]) -> None:
        self._opening = opening

    def opening(self, known: Known) -> None:
        """Print everything."""
        self._opening(known)

    def happened(self, line: StoryLine) -> None:
        """Print the line."""
        story_table.happened([line])

    def sentence(self, story: Story) -> None:
        """Print the sentence."""
        story_table.sentence(story)

    def end(self, known: Known) -> None:
        """Print the sentence, and the result if there is one."""
        story_table.sentence(known.story)
        if known.document.get("result") is not None:
            output.facts({"result": story_table.result_of(known.document["result"])})


class Records:
    """The changes for programs: a JSON object in each line. The last one has everything."""

    def __init__(self, job: str) -> None:
        self._job = job

    def opening(self, known: Known) -> None:
        """Print what has happened so far, and where the job is."""
        for line in known.story.lines:
            self.happened(line)
        if not known.info.status.ended:
            self.sentence(known.story)

    def happened(self, line: StoryLine) -> None:
        """Print the line."""
        print(output.record({"id": self._job, "happened": of_line(line)}), flush=True)

    def sentence(self, story: Story) -> None:
        """Print the sentence."""
        print(output.record({"id": self._job, "sentence": story.sentence}), flush=True)

    def end(self, known: Known) -> None:
        """Print everything."""
        print(output.record(known.document), flush=True)
