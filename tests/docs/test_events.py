"""The guide to the log names every event that fennelq logs, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fennelq.worker.running import reports, unrunnable
from tests.docs.pages import DOCS, ROOT

GUIDE = DOCS / "guides/logging.md"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| .+ \|$", re.MULTILINE)
METHODS = ("info", "warning", "error", "critical")
Event = tuple[str, str]
"""Its name and its level."""


def events_of_the_code() -> set[Event]:
    found = {(event, level) for level, event in reports.WORDS.values()}
    found |= {(event, "warning") for event in ("log_lines_lost", *unrunnable.EVENTS.values())}
    found |= {("redis_trouble", "warning"), ("waiting_for_redis", "warning")}  # of `outage.Outage`
    for path in (ROOT / "fennelq").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            found |= set(events_of(node))
    return found


def events_of(node: ast.AST) -> Iterator[Event]:
    """Those of a call like `_logger.info("event", …)`, and of the watchdog's `_give_up(sign, "event", …)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    level = node.func.attr if ast.unparse(node.func.value) == "_logger" else ""
    where = 0
    if ast.unparse(node.func) == "self._give_up" and len(node.args) == 2:
        level, where = "critical", 1
    if level in METHODS:
        for name in ast.walk(node.args[where]):
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name.value, level


def rows() -> list[list[Event]]:
    """The rows of each table."""
    tables = GUIDE.read_text("utf-8").split("| event | level | means |\n")[1:]
    return [ROW.findall(table.partition("\n\n")[0]) for table in tables]


def test_every_event_is_in_the_guide_with_its_level_and_no_other_is() -> None:
    assert sorted(row for table in rows() for row in table) == sorted(events_of_the_code())


def test_the_events_of_each_table_are_sorted() -> None:
    assert len(rows()) >= 2
    for table in rows():
        assert table == sorted(table)
