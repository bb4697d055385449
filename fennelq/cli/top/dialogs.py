"""What comes in front of the views of `fennelq top`: questions, a filter to type, progress, help. While one is open,
nothing is asked of Redis."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, RadioButton, RadioSet, Static

from fennelq.cli.top.acts import Answer, Going, Question
from fennelq.cli.top.rows import one_line
from fennelq.errors import InvalidFilter
from fennelq.manage.finding import check_live
from fennelq.model.query import WORDS, State, parse

_STATES: Final = ", ".join(state for state in State if state not in (State.SUCCESS, State.CANCELLED))
_CSS: Final = """
{name} {{ align: center middle; }}
{name} > VerticalScroll {{
    width: 90%; max-width: 100; height: auto; max-height: 90%; border: round $primary; padding: 0 1;
    background: $surface;
}}
{name} Static {{ height: auto; }}
{name} .title {{ text-style: bold; }}
{name} .hint {{ color: $text-muted; }}
{name} .error {{ color: $text-error; }}
{name} Input {{ margin: 0; }}
{name} RadioSet {{ border: none; background: $surface; width: 100%; }}
"""


def plain(text: str, classes: str = "", id: str | None = None) -> Static:
    """A text in which nothing is markup."""
    return Static(Text(text), classes=classes, id=id, markup=False)


class QuestionDialog(ModalScreen[Answer | None]):
    """Asks; None when the answer is no."""

    DEFAULT_CSS = _CSS.format(name="QuestionDialog")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "yes", show=False),
        Binding("n,escape,q", "no", show=False),
    ]

    def __init__(self, question: Question) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """The question, what to know before, and the fields."""
        question = self._question
        with VerticalScroll():
            yield plain(question.title, "title")
            yield from (plain(line) for line in question.lines if line)
            if question.choices:
                yield RadioSet(*(RadioButton(one, value=not at) for at, one in enumerate(question.choices)))
            if question.text:
                yield plain(f"{question.text}:")
                yield Input(max_length=200)
            yield plain(
                "enter: yes   tab: next field   esc: no" if question.text else "y: yes   n: no", "hint"
            )

    def on_mount(self) -> None:
        """Begin with the text."""
        if self._question.text:
            self.query_one(Input).focus()

    def on_input_submitted(self) -> None:
        """The text is complete."""
        self.action_yes()

    def action_yes(self) -> None:
        """Yes, with what was typed and chosen."""
        text = self.query_one(Input).value if self._question.text else ""
        choice = self.query_one(RadioSet).pressed_index if self._question.choices else 0
        _ = self.dismiss(Answer(text, max(0, choice)))

    def action_no(self) -> None:
        """No."""
        _ = self.dismiss(None)


class FilterDialog(ModalScreen[str | None]):
    """Asks for a filter, in the language of `fennelq job list --where`; None when the person goes back."""

    DEFAULT_CSS = _CSS.format(name="FilterDialog")
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back", show=False)]

    def __init__(self, begin: str) -> None:
        super().__init__()
        self._begin = begin

    def compose(self) -> ComposeResult:
        """The field, and the words of the language."""
        with VerticalScroll():
            yield plain("Find jobs", "title")
            yield Input(
                one_line(self._begin),
                placeholder='state:dead task:welcome since:2h "no card"',
                select_on_focus=False,
            )
            yield plain("", "error", "error")
            yield plain(f"Words: {', '.join(WORDS)}. States: {_STATES}. A bare id opens the job.", "hint")
            yield plain("enter: find   esc: back", "hint")

    def on_mount(self) -> None:
        """Type at the end."""
        field = self.query_one(Input)
        field.focus()
        field.cursor_position = len(field.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Check the filter: an error is shown, and can be corrected."""
        try:
            check_live(parse(event.value, datetime.now(UTC).astimezone()))
        except InvalidFilter as error:
            self.query_one("#error", Static).update(Text(one_line(str(error))))
        else:
            _ = self.dismiss(event.value)

    def action_back(self) -> None:
        """Search nothing."""
        _ = self.dismiss(None)


class GoingDialog(ModalScreen[None]):
    """Shows how far an act has come; Escape stops it between two steps."""

    DEFAULT_CSS = _CSS.format(name="GoingDialog")
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "stop", show=False)]

    def __init__(self, title: str, jobs: int) -> None:
        super().__init__()
        self._title, self._jobs = title, jobs
        self.going = Going(jobs, self._show)

    def compose(self) -> ComposeResult:
        """The title, and the number of jobs."""
        with VerticalScroll():
            yield plain(self._title, "title")
            yield plain(self._far(0), id="far")
            yield plain("esc: stop" if self._jobs else "", "hint", "hint")

    def action_stop(self) -> None:
        """Stop after the step that is under way."""
        self.going.stop()
        self.query_one("#hint", Static).update(Text("It stops after the step that is under way."))

    def _show(self, done: int) -> None:
        if self.is_mounted:
            self.query_one("#far", Static).update(Text(self._far(done)))

    def _far(self, done: int) -> str:
        return f"{done:,} of {self._jobs:,} jobs" if self._jobs else ""


class CountingDialog(ModalScreen[None]):
    """Is shown while an act counts its jobs; Escape gives up."""

    DEFAULT_CSS = _CSS.format(name="CountingDialog")
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "give_up", show=False)]

    def compose(self) -> ComposeResult:
        """A sentence."""
        with VerticalScroll():
            yield plain("Counting; nothing is changed yet.", "title")
            yield plain("esc: back", "hint")

    def action_give_up(self) -> None:
        """Count no more."""
        _ = self.dismiss(None)


class HelpDialog(ModalScreen[None]):
    """The keys."""

    DEFAULT_CSS = _CSS.format(name="HelpDialog")
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "back", show=False)]

    def __init__(self, keys: Iterable[tuple[str, str]]) -> None:
        super().__init__()
        self._keys = [*keys]

    def compose(self) -> ComposeResult:
        """A line for each key."""
        with VerticalScroll():
            yield plain("Keys", "title")
            yield from (plain(f"{key:<12}{what}") for key, what in self._keys)
            yield plain("esc: back", "hint")

    def action_back(self) -> None:
        """Close it."""
        _ = self.dismiss(None)


class QuitDialog(ModalScreen[bool]):
    """Asks whether to leave. While it is open, Redis is not asked anything."""

    DEFAULT_CSS = _CSS.format(name="QuitDialog")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,q,enter", "leave(True)", show=False),
        Binding("n,escape", "leave(False)", show=False),
    ]

    def compose(self) -> ComposeResult:
        """The question."""
        with VerticalScroll():
            yield plain("Leave fennelq top?", "title")
            yield plain("Meanwhile it asks Redis nothing.")
            yield plain("q: leave   esc: back", "hint")

    def action_leave(self, leave: bool) -> None:
        """The answer."""
        _ = self.dismiss(leave)
