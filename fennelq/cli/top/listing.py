"""The list of `fennelq top`: a table with a cursor, or a page of text. It draws texts as they are: nothing in them is
markup or a control character."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from fennelq.cli.tables.table import EMPTY, GAP, Column, Fit, fit, folded, padded, shortened, width
from fennelq.cli.top.rows import Line, Role, Row, is_number, shown

_ROLES: Final = ("plain", "urgent", "soon", "note", "calm", "title")


class Listing(Widget, can_focus=True):
    """Shows rows or lines. The cursor stays at its row when others come and go."""

    DEFAULT_CSS = """
    Listing { height: 1fr; padding: 0 1; }
    .listing--urgent { color: $text-error; }
    .listing--soon { color: $text-warning; }
    .listing--note { color: $text-accent; }
    .listing--calm { text-style: dim; }
    .listing--title { text-style: bold; }
    .listing--cursor { background: $primary 40%; }
    .listing--heading { text-style: bold; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *(f"listing--{role}" for role in _ROLES),
        "listing--plain",
        "listing--cursor",
        "listing--heading",
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown,space", "page(1)", show=False),
        Binding("home,g", "move(-1000000)", show=False),
        Binding("end,G", "move(1000000)", show=False),
    ]

    class Moved(Message):
        """The cursor is at another row."""

    class Chosen(Message):
        """A person has clicked on the row at the cursor."""

    def __init__(self) -> None:
        super().__init__()
        self._columns: Sequence[Column] = ()
        self._rows: Sequence[Row] = ()
        self._lines: Sequence[Line] = ()
        self._empty, self._sorted = "", (-1, False)
        self._cursor = self._top = 0
        self._moved = False
        """Whether a person has moved the cursor. Until then it is at the first row, whichever that is."""
        self._draw: Callable[[int], Strip] | None = None

    @property
    def row(self) -> Row | None:
        """The row at the cursor."""
        return self._rows[self._cursor] if self._cursor < len(self._rows) else None

    @property
    def place(self) -> str:
        """`3 of 1,000`; empty for a page of text and an empty list."""
        return f"{self._cursor + 1:,} of {len(self._rows):,}" if self._rows else ""

    def show_rows(
        self, columns: Sequence[Column], rows: Sequence[Row], empty: str, sorted_by: tuple[int, bool]
    ) -> None:
        """Show these rows; `sorted_by` has the number of a column, and whether the order is reversed."""
        before = (self._columns, self._rows, self._empty, self._sorted, self._lines)
        if before == (columns, rows, empty, sorted_by, ()):
            return
        if self.row is not None and self._moved:
            places = {row.key: place for place, row in enumerate(rows)}
            self._cursor = places.get(self.row.key, self._cursor)
        self._columns, self._rows, self._lines = columns, rows, ()
        self._empty, self._sorted = empty, sorted_by
        self._show()

    def show_lines(self, lines: Sequence[Line]) -> None:
        """Show a page of text."""
        if not self._columns and lines == self._lines:
            return
        self._columns, self._rows, self._lines, self._empty = (), (), lines, ""
        self._show()

    def begin(self) -> None:
        """Go to the first row: another view is shown."""
        self._cursor = self._top = 0
        self._moved = False
        self._rows = self._lines = ()
        self._show()

    def action_move(self, by: int) -> None:
        """Move the cursor, or scroll a page of text."""
        self._moved = True
        if self._columns:
            self._cursor += by
        else:
            self._top += by
        self._show()
        self.post_message(self.Moved())

    def action_page(self, by: int) -> None:
        """Move by a screen."""
        self.action_move(by * max(1, self.size.height - 2))

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the row; a second click chooses it."""
        place = self._top + event.y - 1
        if not self._columns or not 0 <= place < len(self._rows) or event.y < 1:
            return
        again = place == self._cursor
        self.action_move(place - self._cursor)
        if again:
            self.post_message(self.Chosen())

    def on_mouse_scroll_down(self) -> None:
        """Move down."""
        self.action_move(3)

    def on_mouse_scroll_up(self) -> None:
        """Move up."""
        self.action_move(-3)

    def on_resize(self) -> None:
        """Fit the columns into the new width."""
        self._show()

    def render_line(self, y: int) -> Strip:
        """A line of the screen."""
        if self._draw is None:
            self._draw = self._table() if self._columns else self._page()
        return self._draw(y)

    def _show(self) -> None:
        self._cursor = max(0, min(self._cursor, len(self._rows) - 1))
        if self._columns:
            room = max(1, self.size.height - 1)
            self._top = max(min(self._top, self._cursor), self._cursor - room + 1)
            self._top = max(0, min(self._top, len(self._rows) - room))
        self._draw = None
        self.refresh()

    def _table(self) -> Callable[[int], Strip]:
        """Draws the heading and the rows that are on the screen; the columns fit these."""
        now, room = datetime.now().astimezone(), self.size.width
        rows = self._rows[self._top : self._top + max(0, self.size.height - 1)]
        cells = [[shown(value, now) for value in row.cells] for row in rows]
        columns = [_dispensable(column, [row[i] for row in cells]) for i, column in enumerate(self._columns)]
        headings = [self._heading(i) for i in range(len(columns))]
        right = [_is_of_numbers([row.cells[i] for row in rows]) for i in range(len(columns))]
        widths = [max(width(line[i], room) for line in [headings, *cells]) for i in range(len(columns))]
        fitted = fit(columns, widths, room)

        def draw(y: int) -> Strip:
            if y == 0:
                return self._strip(_joined(headings, columns, fitted, right), "heading")
            if not rows:
                return self._strip(self._empty if y == 2 else "", "calm")
            if y > len(rows):
                return self._strip("", "plain")
            here = self._top + y - 1 == self._cursor
            return self._strip(_joined(cells[y - 1], columns, fitted, right), rows[y - 1].role, here=here)

        return draw

    def _heading(self, column: int) -> str:
        by, reverse = self._sorted
        mark = "" if column != by else " ▲" if reverse else " ▼"
        return f"{self._columns[column].name.upper()}{mark}"

    def _page(self) -> Callable[[int], Strip]:
        room = max(1, self.size.width)
        lines = [(text, line.role) for line in self._lines for text in folded(line.text, room).split("\n")]
        self._top = max(0, min(self._top, len(lines) - self.size.height))

        def draw(y: int) -> Strip:
            at = self._top + y
            return self._strip(*lines[at]) if at < len(lines) else self._strip("", "plain")

        return draw

    def _strip(self, text: str, role: Role | str, *, here: bool = False) -> Strip:
        room = self.size.width
        style: Style = self.get_component_rich_style(f"listing--{role}", partial=True)
        if here:
            style += self.get_component_rich_style("listing--cursor", partial=True)
        line = padded(shortened(text, room), room) if here else shortened(text, room)
        strip = Strip([Segment(line, self.rich_style + style)])
        return strip.adjust_cell_length(room, self.rich_style)


def _joined(texts: Sequence[str], columns: Sequence[Column], fitted: Fit, right: Sequence[bool]) -> str:
    pairs = zip(fitted.shown, fitted.widths, strict=True)
    return GAP.join(
        padded(shortened(texts[i], wide, end=columns[i].end), wide, right=right[i]) for i, wide in pairs
    ).rstrip()


def _is_of_numbers(values: Sequence[object]) -> bool:
    return all(is_number(value) or value in (None, "") for value in values)


def _dispensable(column: Column, cells: Sequence[str]) -> Column:
    """The column. If it has no values, it is the first to be left out."""
    return column if any(cells) or not column.leave else column._replace(leave=EMPTY)
