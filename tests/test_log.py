"""Logs: no line drives a terminal, and no failure to write one reaches the caller."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest
import structlog

from fennelq import log

HOSTILE = "\x1b[2J\x1b]0;owned\x07 \u202egnp\x9b31m"

LINES = """
import logging, sys, structlog
from fennelq import log
log.setup(sys.argv[1])
hostile = sys.argv[2].encode("latin-1").decode("unicode_escape")
logger = log.get("test")
logger.info(hostile, job_id=hostile, reason=hostile, **{hostile: 1})
logger.error("values", listed=[hostile], odd=type("Odd", (), {"__repr__": lambda _: hostile})(), none=None, n=5)
logging.getLogger("library").warning("about %s", hostile)
logging.getLogger("library").warning("about %d", hostile)
try:
    secret = "argument"
    raise ValueError(hostile)
except ValueError:
    structlog.get_logger().exception("failed")
    logging.getLogger("library").exception("failed")
logger.critical("stacks", stack=hostile + "\\nsecond line\\n")
"""


def command(fmt: str) -> list[str]:
    return [sys.executable, "-c", LINES, fmt, HOSTILE.encode("unicode_escape").decode()]


def logged(fmt: str) -> str:
    ended = subprocess.run(command(fmt), check=True, stderr=subprocess.PIPE, encoding="utf-8")
    return ended.stderr


def logged_on_a_terminal() -> str:
    ours, theirs = pty.openpty()
    with subprocess.Popen(command("auto"), stderr=theirs) as process:
        os.close(theirs)
        read = b""
        with suppress(OSError):  # the error of Linux when the other end is closed
            while data := os.read(ours, 1 << 16):
                read += data
        assert process.wait() == 0
    os.close(ours)
    return read.decode()


def obeyed(text: str) -> set[str]:
    """What a terminal would obey in a text."""
    return {c for c in text if not c.isprintable() and c != "\n"}


@pytest.mark.parametrize("fmt", ["console", "json", "auto"])
def test_no_line_holds_what_a_terminal_would_obey(fmt: str) -> None:
    text = logged(fmt)
    assert obeyed(text) == set()
    assert text.count("gnp") >= 8


def test_on_a_terminal_only_our_own_colours_are_left() -> None:
    text = logged_on_a_terminal().replace("\r\n", "\n")
    assert "\x1b[1m" in text
    assert "owned" in text
    assert obeyed(re.sub(r"\x1b\[\d+m", "", text)) == set()


def test_the_lines_of_a_traceback_stay_and_its_variables_are_not_shown() -> None:
    text = logged("console")
    assert text.count("Traceback (most recent call last):\n") >= 2
    assert "\nValueError: \\x1b[2J" in text
    assert "argument" not in text


def test_json_lines_are_read_as_they_were_written() -> None:
    lines = [json.loads(line) for line in logged("json").splitlines()]
    assert lines[0]["job_id"] == lines[0]["event"] == HOSTILE
    assert lines[1]["listed"] == [HOSTILE]
    assert lines[2]["event"] == f"about {HOSTILE}"
    assert lines[-1]["stack"] == f"{HOSTILE}\nsecond line\n"


def test_a_record_that_cannot_be_formatted_is_shown_with_the_reason() -> None:
    (line,) = [line for line in map(json.loads, logged("json").splitlines()) if "not_formatted" in line]
    assert (line["event"], line["logger"], line["at"]) == ("about %d", "library", "<string>:10")
    assert line["not_formatted"].startswith("TypeError: %d format:")


PROGRAM = """
import asyncio, contextvars, logging, sys, structlog
from fennelq import log

class Shy:
    def __repr__(self): raise RuntimeError("do not look")

for line in sys.argv[1:]:
    exec(line)
"""


def program(*lines: str, **environment: str) -> list[str]:
    """What a program writes to stdout and stderr, line by line."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *lines],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        env=os.environ | environment,
    )
    return ended.stdout.splitlines()


def test_a_program_that_only_imports_fennelq_is_not_configured_and_gets_its_lines() -> None:
    shown = program(
        "import fennelq.worker.executor",
        "assert not structlog.is_configured()",
        "assert (logging.root.handlers, logging.root.level) == ([], logging.WARNING)",
        "log.get('fennelq.test').info('unseen')",
        "log.get('fennelq.test').warning('trouble', what='reading', error='a b', n=5)",
        "logging.basicConfig(level=logging.INFO, format='%(name)s %(levelname)s %(n)s %(message)s')",
        "log.get('fennelq.test').info('seen', n=6, message='\\x1b', traceback='Traceback\\nError\\n')",
    )
    assert shown == [
        "trouble what=reading error='a b' n=5",
        r"fennelq.test INFO 6 seen n=6 message=\x1b",
        "Traceback",
        "Error",
    ]


def test_a_value_that_cannot_be_shown_fails_no_caller() -> None:
    lines = program(
        "log.setup('json')",
        "structlog.get_logger('mine').info('odd', shy=Shy(), level='mine')",
        "logging.getLogger('mine').info('odd', extra={'shy': Shy()})",
        "log.get('test').info('odd', shy=Shy())",
    )
    odd = [json.loads(line) for line in lines]
    assert [line["shy"] for line in odd] == ["<Shy, whose repr() raises RuntimeError>"] * 3
    assert [line.get("logger") for line in odd] == ["mine", "mine", None]
    assert (odd[0]["level"], odd[0]["level_"]) == ("info", "mine")


def test_what_asyncio_reports_is_not_taken_for_a_line_of_the_running_job() -> None:
    lines = program(
        "log.setup('json', about=lambda: {'job_id': 'mail:7'})",
        "logging.getLogger('asyncio').error('never retrieved')",
        "logging.getLogger('httpx').info('a request')",
    )
    assert [json.loads(line).get("job_id") for line in lines] == [None, "mail:7"]


def test_what_the_users_configure_after_setup_wins_for_their_lines_only() -> None:
    lines = program(
        "log.setup('json', stdlib=False)",
        "structlog.configure(processors=[structlog.processors.KeyValueRenderer()])",
        "logging.basicConfig(format='mine %(message)s')",
        "log.setup('json')",
        "structlog.get_logger().info('theirs')",
        "logging.getLogger('mine').info('theirs')",
        "log.get('test').info('ours')",
    )
    assert lines[:2] == ["event='theirs'", "mine theirs"]
    assert json.loads(lines[2])["event"] == "ours"


def test_a_setup_that_leaves_everything_to_the_program_undoes_an_earlier_one() -> None:
    lines = program(
        "log.setup('json')",
        "log.setup('json', config='none')",
        "assert not structlog.is_configured()",
        "assert (logging.root.handlers, logging.root.level) == ([], logging.WARNING)",
        "log.get('test').warning('ours', n=5)",
        "logging.getLogger('mine').warning('theirs')",
    )
    assert lines == ["ours n=5", "theirs"]


LATER = """
import sys
from fennelq import log
log.setup("json", level="warning", stdlib=False, at_once=False)
for line in sys.argv[1:]:
    exec(line)
"""


@pytest.mark.parametrize(
    ("lines", "written"),
    [
        (["assert 'structlog' not in sys.modules"], []),
        (["log.get('test').info('unseen')", "assert 'structlog' not in sys.modules"], []),
        (["log.get('test').warning('ours')"], ["ours"]),
        (["import structlog", "structlog.get_logger('mine').info('unseen')"], []),
        (["import structlog", "structlog.get_logger('mine').warning('theirs')"], ["theirs"]),
        (["from structlog.stdlib import get_logger", "get_logger('mine').warning('theirs')"], ["theirs"]),
        (
            [
                "import structlog",
                "structlog.contextvars.bind_contextvars(n=5)",
                "log.get('test').warning('ours')",
                "structlog.get_logger().error('theirs')",
            ],
            ["ours", "theirs"],
        ),
        (
            ["log.setup('json', config='none')", "import structlog", "assert not structlog.is_configured()"],
            [],
        ),
    ],
)
def test_structlog_is_configured_when_it_is_imported_and_not_imported_before(
    lines: list[str], written: list[str]
) -> None:
    ended = subprocess.run([sys.executable, "-c", LATER, *lines], check=True, capture_output=True)
    assert [json.loads(line)["event"] for line in ended.stderr.splitlines()] == written
    assert ended.stdout == b""


def test_a_worker_has_all_that_it_needs_for_a_line_before_it_writes_one() -> None:
    lines = program(
        "import builtins",
        "log.setup('console')",
        "known = {*sys.modules}",
        "log.get('test').error('ours', n=5, traceback='Traceback')",
        "assert {*sys.modules} == known, {*sys.modules} - known",
    )
    assert len(lines) == 2


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"NO_COLOR": ""}])
def test_no_color_means_no_colours(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert ("\x1b" in logged_on_a_terminal()) is not bool(environment["NO_COLOR"])


def test_processors_of_the_users_own_that_raise_reach_no_caller() -> None:
    before = structlog.get_config()

    def fail(*_: object) -> Any:
        raise RuntimeError("a processor fails")

    structlog.configure(processors=[fail], wrapper_class=None, cache_logger_on_first_use=False)
    try:
        logger = log.get("test")
        logger.info("event", fact=1)
        logger.warning("event")
        logger.error("event")
        logger.critical("event")
    finally:
        structlog.configure(**before)
