"""`--help` of every command: plain English, a word for every value, a default, and within the width of the screen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from fennelq.cli import program
from fennelq.cli.commands import COMMANDS
from fennelq.cli.helps import meaning, names
from fennelq.cli.tables.table import width
from tests.cli.terminal import Terminal
from tests.cli.test_commands import fennelq

JUNK = re.compile(
    r"\[Any\]|list\[|<[^>]*>|lambda|\bTEXT\b|\bINTEGER\b|\bFLOAT\b|\bPATH\b|\bBOOLEAN\b|\bNone\b|FuncParam"
)


def every(command: Any = None, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group, with the words that call it."""
    command = command or get_command(program)
    yield words, command
    for name, child in getattr(command, "commands", {}).items():
        yield from every(child, (*words, name))


EVERY = [*every()]
IDS = ["fennelq " + " ".join(words) for words, _ in EVERY]


@pytest.mark.parametrize("columns", [60, 120])
@pytest.mark.parametrize(("words", "command"), EVERY, ids=IDS)
def test_help_fits_and_names_no_python_types(words: tuple[str, ...], command: Any, columns: int) -> None:
    path = " ".join(("fennelq", *words))
    text = command.context_class(command, info_name=path, terminal_width=columns - 2).get_help()
    assert text.startswith(f"Usage: {path} [OPTIONS]")
    assert not JUNK.findall(text)
    assert [line for line in text.splitlines() if width(line) > columns] == []


@pytest.mark.parametrize(("words", "command"), EVERY, ids=IDS)
def test_every_option_documents_its_values_and_its_default(words: tuple[str, ...], command: Any) -> None:
    for option in command.params:
        if option.param_type_name == "argument":
            assert option.metavar, option.name
            assert option.help, option.name
            assert option.required or "Default: " in meaning(option), option.name
        elif not option.is_flag:
            assert option.metavar, option.name
            assert "Default: " in meaning(option), f"{names(option)}: {meaning(option)}"
        assert meaning(option).endswith("."), option.name


def test_the_help_lists_the_commands_in_the_order_of_their_table() -> None:
    command: Any = get_command(program)
    text = command.context_class(command, info_name="fennelq").get_help()
    listed = text.partition("Commands:")[2].partition("Options:")[0]
    assert re.findall(r"^  (\w+) ", listed, re.MULTILINE) == [*COMMANDS]


@pytest.mark.parametrize("columns", [60, 120])
def test_a_terminal_and_a_pipe_show_the_same_help(folder: Path, columns: int) -> None:
    words = ("dlq", "list", "--help")
    shown = Terminal(*words, folder=folder, columns=columns, NO_COLOR="1").lines()
    assert shown == fennelq(*words, folder=folder, COLUMNS=str(columns)).out.splitlines()
    assert shown[:3] == ["Usage: fennelq dlq list [OPTIONS]", "", "  List the dead jobs, the newest first."]
