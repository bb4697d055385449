"""How a function becomes a command: groups of options are spelled out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from fennelq.cli.command import command, family

Number = Annotated[int, typer.Option("--number", "-n", help="How many.")]
Word = Annotated[str, typer.Option("--word", help="Which.")]
Name = Annotated[str, typer.Argument(metavar="NAME")]


@dataclass(frozen=True)
class Group:
    number: Number = 1
    word: Word = "none"


calls: list[tuple[Group, str, bool]] = []
commands = family("Some commands.")


@command(commands, "first")
def first(group: Group, name: Name, loud: bool = False) -> None:
    """The first."""
    calls.append((group, name, loud))


@command(commands, "second")
def second(group: Group) -> None:
    """The second."""
    calls.append((group, "", False))


def run(*words: str) -> tuple[Group, str, bool]:
    calls.clear()
    done = CliRunner().invoke(commands, words)
    assert done.exit_code == 0, done.output
    (call,) = calls
    return call


def test_a_group_is_made_of_the_options_that_are_given_and_the_defaults_of_the_others() -> None:
    assert run("first", "me") == (Group(), "me", False)
    assert run("first", "me", "-n", "3", "--loud") == (Group(3), "me", True)
    assert run("second", "--word", "x") == (Group(word="x"), "", False)


def test_the_help_of_a_command_lists_the_options_of_its_groups() -> None:
    text = CliRunner().invoke(commands, ["first", "--help"]).output
    assert "The first." in text
    for option in ("--number", "--word", "--loud", "NAME"):
        assert option in text


def test_a_function_stays_one_that_can_be_called() -> None:
    calls.clear()
    first(Group(2), "you")
    assert calls == [(Group(2), "you", False)]
