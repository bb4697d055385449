"""The screen of `fennelq top`: a sentence, the figures, a list, and the keys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Static

from fennelq import clock
from fennelq.cli.tables.table import shortened
from fennelq.cli.top import acts
from fennelq.cli.top.acting import acted
from fennelq.cli.top.dialogs import FilterDialog, HelpDialog, QuitDialog
from fennelq.cli.top.jobs import FoundView, GroupView, JobView
from fennelq.cli.top.keys import ACTS, BACK, COMMON, KEYS, hints, tabs
from fennelq.cli.top.listing import Listing
from fennelq.cli.top.looking import Looking
from fennelq.cli.top.rows import Row, Subject, in_order, joined, one_line
from fennelq.cli.top.views import DeadView, OverviewView, QueuesView, RunningView, View, numbers
from fennelq.errors import InvalidFilter
from fennelq.manage.attention import Urgency, in_a_sentence, needs
from fennelq.manage.dead.letter import Group
from fennelq.manage.overview import DeadGroups, Overview
from fennelq.manage.schedules import ScheduleInfo
from fennelq.model.query import State, parse

if TYPE_CHECKING:
    from textual.app import App as Screens

    from fennelq.app import App

_LAST_LINE: Final = 6.0
"""Seconds for the last line of the record of an act. The record itself allows five."""
Sorting = tuple[int, bool]
"""The number of a column, -1 for the order of the view; and whether the order is reversed."""


class TopScreen(Screen[None]):
    """Shows what `Looking` finds, and reacts to keys."""

    DEFAULT_CSS = """
    TopScreen Static { padding: 0 1; height: 1; }
    TopScreen #attention { height: auto; max-height: 3; text-style: bold; }
    TopScreen #attention.urgent { color: $text-error; }
    TopScreen #attention.soon { color: $text-warning; }
    TopScreen #attention.note { color: $text-accent; }
    TopScreen #attention.calm { color: $text-success; }
    TopScreen #numbers, TopScreen #path, TopScreen #keys { color: $text-muted; }
    TopScreen #more { height: 3; border-top: solid $panel; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(number), f"show({number})", show=False) for number in range(1, 5)),
        Binding("enter,right", "open", show=False),
        Binding("escape,left,backspace", "back", show=False),
        Binding("slash", "find", show=False),
        Binding("s", "sort", show=False),
        Binding("S", "reverse", show=False),
        *(Binding(key, f"act('{act}')", show=False) for key, act in ACTS.items()),
        Binding("question_mark", "help", show=False),
        Binding("q", "quit", show=False),
    ]

    def __init__(self, app: App, title: str) -> None:
        super().__init__()
        self._shop, self._title = app, title
        self._path: list[View] = [OverviewView()]
        self._sorting: dict[type[View], Sorting] = {}
        self._groups: Sequence[Group] = ()
        self._schedules: Sequence[ScheduleInfo] = ()
        """The latest ones: new errors and missed runs are a part of the sentence in every view."""
        self._notice = ""
        self._acting: asyncio.Task[None] | None = None
        self._is_stale = False
        """Whether a drawing is on its way."""
        self._written: dict[str, Text] = {}
        self._looking = Looking(app, self._path[0], self._note_change)

    def compose(self) -> ComposeResult:
        """The parts, from top to bottom."""
        for name in ("attention", "tabs", "numbers", "path"):
            yield Static("", id=name, markup=False)
        yield Listing()
        for name in ("more", "keys"):
            yield Static("", id=name, markup=False)

    # Looking

    def on_mount(self) -> None:
        """Keep the clock, and the words about an old picture, up to date."""
        self.set_interval(1.0, self._tick)
        self._redraw()

    def on_screen_resume(self) -> None:
        """Nothing is in front of the views any more."""
        self._looking.start()

    async def on_screen_suspend(self) -> None:
        """A dialog is in front of the views."""
        await self._looking.stop()

    async def on_unmount(self) -> None:
        """The program ends. An act that is under way is interrupted, and writes that into its record."""
        await self._looking.stop()
        if self._acting is not None:
            self._acting.cancel()
            await asyncio.wait([self._acting], timeout=_LAST_LINE)

    def on_resize(self) -> None:
        """Fit the texts into the new width."""
        self._redraw()

    def _tick(self) -> None:
        self._looking.check()
        self._draw_head()

    # Keys

    def action_show(self, number: int) -> None:
        """Show one of the four views."""
        first = (OverviewView, QueuesView, lambda: RunningView(self._shop.settings.lease), DeadView)
        self._go([first[number - 1]()])

    def action_open(self) -> None:
        """Open what is at the cursor."""
        row = self._list.row
        about = row.about if row else Subject()
        if about.job:
            self._push(JobView(about.job, self._shop.redaction))
        elif about.group:
            self._push(GroupView(about.group, self._shop.redaction))
        elif about.queue or about.executor:
            where = f"state:{State.RUNNING} on:{about.executor}" if about.executor else f"queue:{about.queue}"
            self._push(FoundView(where, self._shop.redaction))

    def on_listing_chosen(self) -> None:
        """A second click on a row opens it."""
        self.action_open()

    def on_listing_moved(self) -> None:
        """Show the text of the row."""
        self._draw_foot()

    def action_back(self) -> None:
        """Go back to the view before."""
        self._notice = ""
        if len(self._path) > 1:
            self._go(self._path[:-1])
        else:
            self._draw_foot()

    async def action_find(self) -> None:
        """Ask for a filter, and show the jobs that it finds."""

        def find(where: str | None) -> None:
            if where is not None:
                self._push(self._view_of(where))

        await self._screens.push_screen(FilterDialog(self._view.where(self._about)), find)

    def action_sort(self) -> None:
        """Sort by the next column."""
        column, _ = self._sorting.get(type(self._view), (-1, False))
        number = len(self._view.columns)
        self._sorting[type(self._view)] = ((column + 2) % (number + 1) - 1, False)
        self._redraw()

    def action_reverse(self) -> None:
        """Reverse the order."""
        column, reverse = self._sorting.get(type(self._view), (-1, False))
        self._sorting[type(self._view)] = (column, not reverse)
        self._redraw()

    async def action_help(self) -> None:
        """Show the keys."""
        await self._screens.push_screen(HelpDialog(KEYS))

    async def action_quit(self) -> None:
        """Ask whether to leave."""

        def leave(yes: bool | None) -> None:
            if yes:
                self._screens.exit()

        await self._screens.push_screen(QuitDialog(), leave)

    def action_act(self, act: str) -> None:
        """Count, ask, and act on what is at the cursor."""
        plan = self._plan_of(act)
        if plan is not None:
            self.run_worker(self._act(plan), group="act", exclusive=True)

    async def _act(self, plan: Callable[[App], Awaitable[acts.Planned]]) -> None:
        self._acting = asyncio.current_task()
        try:
            self._notice = one_line(await acted(self._screens, self._shop, plan))
        finally:
            self._acting = None
        self._draw_foot()

    def _plan_of(self, act: str) -> Callable[[App], Awaitable[acts.Planned]] | None:
        about, view = self._about, self._view
        if act in ("pause", "resume") and about.queue and not about.job:
            queue = acts.pause if act == "pause" else acts.resume
            return lambda app: queue(app, about)
        if act == "cancel" and acts.may_cancel(about):
            return lambda app: acts.cancel(app, about)
        if act == "cancel_all" and isinstance(view, FoundView):
            return lambda app: acts.cancel_all(app, view.filter)
        if act == "replay" and about.job and about.state == State.DEAD:
            return lambda app: acts.replay_one(app, about)
        if act in ("replay", "replay_group") and about.group:
            return lambda app: acts.replay_group(app, about)
        return None

    # Views

    @property
    def _screens(self) -> Screens[Any]:
        return self.app  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

    @property
    def _view(self) -> View:
        return self._path[-1]

    @property
    def _list(self) -> Listing:
        return self.query_one(Listing)

    @property
    def _about(self) -> Subject:
        """What keys act on."""
        if isinstance(self._view, JobView):
            return self._view.about(self._looking.picture.seen)
        row = self._list.row
        return row.about if row else Subject()

    def _view_of(self, where: str) -> View:
        try:
            ids = parse(where, clock.from_ms(clock.wall_ms())).ids
        except InvalidFilter:
            ids = ()
        if len(ids) == 1:
            return JobView(ids[0], self._shop.redaction)
        return FoundView(where, self._shop.redaction)

    def _push(self, view: View) -> None:
        self._go([*self._path, view])

    def _go(self, path: list[View]) -> None:
        self._path, self._notice = path, ""
        self._list.begin()
        self._looking.open(path[-1])

    # Drawing

    def _note_change(self) -> None:
        """A mistake in drawing ends the program. It must not end the looking, which would be silent."""
        if not self._is_stale:
            self._is_stale = True
            self.call_later(self._redraw)

    def _redraw(self) -> None:
        self._is_stale = False
        if not self.is_mounted:
            return
        view, picture = self._view, self._looking.picture
        if isinstance(picture.seen, Overview | DeadGroups):
            self._groups = picture.seen.groups
        if isinstance(picture.seen, Overview):
            self._schedules = picture.seen.schedules
        if not view.columns:
            self._list.show_lines(view.lines(picture.seen))
        elif picture.snapshot is not None:
            sorting = self._sorting.get(type(view), (-1, False))
            rows = view.rows(picture.snapshot, picture.seen)
            self._list.show_rows(view.columns, _sorted(rows, sorting), self._empty(), sorting)
        self._draw_head()
        self._draw_foot()

    def _empty(self) -> str:
        picture = self._looking.picture
        if picture.refused:
            return picture.refused
        return self._view.empty if picture.seen is not None or not self._view.asks else "Looking …"

    def _draw_head(self) -> None:
        picture, trouble = self._looking.picture, self._looking.trouble()
        sentence, role = f"{trouble}.", "urgent"
        if not trouble:
            sentence, role = self._sentence()
        self.query_one("#attention", Static).set_classes(role)
        self._write("attention", sentence, layout=True)
        self._write("tabs", tabs(self._path[0].title, self._title, self.size.width - 2))
        self._write("numbers", self._fitting(numbers(picture.snapshot) if picture.snapshot else ""))

    def _sentence(self) -> tuple[str, str]:
        snapshot = self._looking.picture.snapshot
        if snapshot is None:
            return "Looking …", "note"
        found = needs(snapshot, self._groups, self._schedules)
        roles = {Urgency.URGENT: "urgent", Urgency.SOON: "soon", Urgency.NOTE: "note"}
        return f"{in_a_sentence(found, snapshot)}.", roles[found[0].urgency] if found else "calm"

    def _draw_foot(self) -> None:
        view, picture, row = self._view, self._looking.picture, self._list.row
        place = self._list.place
        self._write("path", self._fitting(joined([view.path, place, view.remarks(picture.seen)])))
        more = self._notice or (row.more if row else "") or (picture.refused if not view.columns else "")
        room = 2 * (self.size.width - 2)
        self._write("more", shortened(more, max(1, room)))
        back = (BACK,) if len(self._path) > 1 else ()
        keys = [hint for hint in view.keys if hint[0] not in ACTS or self._plan_of(ACTS[hint[0]])]
        self._write("keys", hints((*keys, *back, *COMMON), self.size.width - 2))

    def _fitting(self, text: str) -> str:
        """A text that says that it is cut. A widget of one line would break it, and show the first part only."""
        return shortened(text, max(1, self.size.width - 2))

    def _write(self, name: str, text: str | Text, *, layout: bool = False) -> None:
        """Write a text if it has changed: the terminal may be far away."""
        found = Text(text) if isinstance(text, str) else text
        if self._written.get(name) != found:
            self._written[name] = found
            self.query_one(f"#{name}", Static).update(found, layout=layout)


def _sorted(rows: list[Row], sorting: Sorting) -> list[Row]:
    column, reverse = sorting
    return in_order(rows, None if column < 0 else column, reverse=reverse)
