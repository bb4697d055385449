"""`pytest -p tests.chaos.long tests/chaos`: the long run, its seed, and all its figures in one table at the end."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

os.environ["CHAOS_LONG"] = "1"
# Set once for all processes of this run, before any of them looks.
os.environ["CHAOS_SEED"] = os.environ.get("SEED") or str(random.SystemRandom().randrange(10**6))


def pytest_report_header() -> str:
    return f"make chaos SEED={os.environ['CHAOS_SEED']}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section(f"figures of SEED={os.environ['CHAOS_SEED']}")
    for row, what in sorted(_figures(terminalreporter)):
        terminalreporter.write_line(f"{row:10} {what}")


def _figures(terminalreporter: pytest.TerminalReporter) -> Iterator[tuple[str, str]]:
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for row, what in report.user_properties:
                yield row, f"{what}{'' if report.passed else '   FAILED'}"
