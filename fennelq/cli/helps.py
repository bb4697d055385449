"""The layout of `--help`: the same on every terminal and in a pipe, and without names of Python types.

Typer's own layouts show the type of each value, such as `<list[Any]>`, and interpret `[tool.fennelq]` as markup.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from typer.core import TyperCommand, TyperGroup

from fennelq.streams import colours

WIDEST: Final = 100
"""Lines longer than this are hard to read, however wide the terminal is."""
_NAMES_WIDTH: Final = 26


_GIVEN: Final = "fennelq.given"


class Command(TyperCommand):
    """A command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line. It keeps the words of each parameter, because the values are not what was typed."""
        words = [*args]
        rest = super().parse_args(ctx, args)
        ctx.meta[_GIVEN] = self.make_parser(ctx).parse_args(words)[0]
        return rest

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`[OPTIONS] ID…`."""
        return ["[OPTIONS]", *(metavar(one) for one in self.get_params(ctx) if _is_argument(one))]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The arguments and options of the command, and their meanings."""
        _write_parameters(self, ctx, formatter)


class Group(TyperGroup):
    """Several commands."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`[OPTIONS] COMMAND …`."""
        return ["[OPTIONS]", "COMMAND", "…"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The commands with the first sentences of their help, then the options that all of them have."""
        rows = [
            (name, _first_sentence(command.help or ""))
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None and not command.hidden
        ]
        write_rows(formatter, "Commands", rows)
        _write_parameters(self, ctx, formatter)


class GroupThatRuns(Group):
    """Several commands, and one without a word of its own."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`[OPTIONS] [COMMAND …]`."""
        return ["[OPTIONS]", "[COMMAND …]"]


def given_words(ctx: Any) -> dict[str, Any]:
    """The parameters that the command line contains, by name, with their words."""
    given: dict[str, Any] = ctx.meta.get(_GIVEN, {})
    return {name: words for name, words in given.items() if words not in (None, (), [])}


def write_rows(formatter: Any, title: str, rows: list[tuple[str, str]]) -> None:
    """A section of names and their meanings."""
    if rows:
        with formatter.section(f"\x1b[1m{title}\x1b[0m" if colours(sys.stdout) else title):
            formatter.write_dl(rows, col_max=_NAMES_WIDTH)


def metavar(parameter: Any) -> str:
    """The placeholder for the value of an option or an argument."""
    return str(parameter.metavar or parameter.name.upper())


def meaning(parameter: Any) -> str:
    """The meaning of an option or an argument, and its default."""
    text, default = parameter.help or "", parameter.default
    takes_value = not getattr(parameter, "is_flag", False)
    if takes_value and isinstance(default, str | int | float) and "Default: " not in text:
        return f"{text} Default: {default}."
    return text


def names(option: Any) -> str:
    """`-q, --queue QUEUE`."""
    words = ", ".join(sorted(option.opts, key=len))
    return words if option.is_flag else f"{words} {metavar(option)}"


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    shown = [one for one in command.get_params(ctx) if not getattr(one, "hidden", False)]
    arguments = [(metavar(one), meaning(one)) for one in shown if _is_argument(one)]
    write_rows(formatter, "Arguments", arguments)
    write_rows(formatter, "Options", [(names(one), meaning(one)) for one in shown if not _is_argument(one)])


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".") + "."
