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
log.write(hostile + "\\nsecond line\\n")
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
        with suppress(OSError):  # what Linux says when the other end is closed
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
    lines = [json.loads(line) for line in logged("json").splitlines() if line.startswith("{")]
    assert lines[0]["job_id"] == lines[0]["event"] == HOSTILE
    assert lines[1]["listed"] == [HOSTILE]


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
