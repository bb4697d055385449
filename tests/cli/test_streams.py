"""Commands in a shell that has closed their streams, or that sends them to a full device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from fennelq.cli.exits import Exit
from tests.kit.server import Server
from tests.kit.spawn import Process, Spawner
from tests.worker import shop

APP = ("-A", f"{shop.__name__}:app")
COMMANDS = {
    ("queue", "list", "--json", *APP): Exit.OK,
    ("info", *APP): Exit.OK,
    ("dlq", "list", *APP): Exit.OK,
    ("worker", "--burst", "-p", "1", *APP): Exit.OK,
    ("--help",): Exit.OK,
    ("--version",): Exit.OK,
    ("job", "show", *APP, "mail:none"): Exit.NOT_FOUND,
    ("queue", "list", "-A", "tests.worker.no_such_shop:app"): Exit.CONFIGURATION,
}

Fennelq = Callable[..., Process]


@pytest.fixture
def fennelq(spawn: Spawner, server: Server) -> Fennelq:
    """`fennelq("info", redirect=">&-")`."""

    def start(*words: str, redirect: str) -> Process:
        return spawn("fennelq", *words, environment={"FENNELQ_REDIS_URL": server.url}, redirect=redirect)

    return start


@pytest.mark.parametrize("redirect", [">&-", "2>&-", ">&- 2>&-", "2>/dev/full"])
@pytest.mark.parametrize(("words", "code"), COMMANDS.items(), ids=map(" ".join, COMMANDS))
def test_a_command_without_streams_does_what_it_would_do_and_ends_with_the_same_code(
    fennelq: Fennelq, redirect: str, words: Sequence[str], code: Exit
) -> None:
    command = fennelq(*words, redirect=redirect)
    assert command.returncode(30) == code
    assert "Traceback" not in command.text
    assert "Error" not in command.text


@pytest.mark.parametrize(
    "words", [("queue", "list", "--json", *APP), ("--help",), ("--version",)], ids=" ".join
)
def test_an_answer_that_cannot_be_written_is_a_failure_in_one_sentence(
    fennelq: Fennelq, words: Sequence[str]
) -> None:
    command = fennelq(*words, redirect=">/dev/full")
    assert command.returncode(30) == Exit.FAILED
    assert command.text == "fennelq: the output cannot be written: No space left on device\n"
