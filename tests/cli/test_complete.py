"""Completion in the shell: names come from the code, without Redis."""

from __future__ import annotations

from pathlib import Path

import pytest

from fennelq.cli.commands import COMMANDS
from tests.cli.shop import Shop
from tests.cli.test_commands import fennelq, nowhere

__all__ = ["nowhere"]


def completed(folder: Path, line: str) -> list[str]:
    """What bash is offered for the last word of a line."""
    answer = fennelq(
        folder=folder,
        _FENNELQ_COMPLETE="complete_bash",
        COMP_WORDS=line,
        COMP_CWORD=str(line.count(" ")),
    )
    assert (answer.code, answer.err) == (0, "")
    return answer.out.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("fennelq ", [*COMMANDS]),
        ("fennelq worker ", ["list", "show", "stacks", "drain"]),
        ("fennelq job ", ["list", "export", "show", "wait", "cancel", "run", "retry"]),
        ("fennelq enqueue w", ["welcome"]),
        ("fennelq enqueue tasks:w", ["tasks:welcome"]),
        ("fennelq queue peek ", ["default", "mail"]),
        ("fennelq dlq list --queue m", ["mail"]),
        ("fennelq dlq list --task ch", ["charge"]),
        ("fennelq enqueue --priority ", ["high", "low", "normal"]),
        ("fennelq worker --log-level e", ["error"]),
        ("fennelq cron pause n", ["nightly"]),
        ("fennelq limit set a", ["account"]),
    ],
)
def test_what_is_offered(folder: Path, nowhere: str, line: str, words: list[str]) -> None:
    shop = Shop(folder)
    with (shop.folder / "tasks.py").open("a") as file:
        file.write('\nprint("hello")\n@app.cron("@daily", name="nightly")\nasync def report() -> None: ...\n')
        file.write(
            '\nfrom fennelq import Limit\n@app.task(concurrency=Limit(1, name="account"))\ndef sync() -> None: ...\n'
        )
    assert completed(folder, line) == words


def test_without_an_app_nothing_is_offered(folder: Path) -> None:
    assert completed(folder, "fennelq enqueue w") == []
    (folder / "tasks.py").write_text("import fennelq\nraise SystemExit(1)\n")
    assert completed(folder, "fennelq enqueue w") == []


def test_the_script_for_a_shell_is_printed(folder: Path) -> None:
    shown = fennelq("--help", folder=folder).out
    assert "--install-completion" in shown
    assert "--show-completion" in shown
