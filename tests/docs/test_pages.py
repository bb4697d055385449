"""The documentation agrees with the code."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.main import get_command

from fennelq.broker.key_kinds import KEY_KINDS
from fennelq.cli import program
from tests.docs.pages import DOCS, ROOT, anchors_of, every_page

ARROWS = sorted(path.stem for path in (ROOT / "fennelq/broker/lua").glob("*.lua"))


def test_the_generated_pages_are_up_to_date() -> None:
    checked = subprocess.run(
        [sys.executable, str(DOCS / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_every_arrow_has_a_paragraph_of_its_name() -> None:
    assert [arrow for arrow in ARROWS if arrow not in anchors_of(DOCS / "concepts/life-cycle.md")] == []


def test_every_decision_has_its_context_and_what_was_given_up() -> None:
    for page in (DOCS / "adr").glob("0*.md"):
        assert {"context", "decision", "what-was-given-up"} <= anchors_of(page), page.name


def test_no_page_names_a_path_of_a_developers_machine() -> None:
    private = re.compile(r"/(?:home|root|tmp|Users)/")
    assert [page.name for page in every_page() if private.search(page.read_text("utf-8"))] == []


def test_the_reference_lists_every_key_once() -> None:
    """By its whole name: `fq:{<app>}:queues` and `{app} queues` would be the same key."""
    text = (DOCS / "reference/keys.md").read_text("utf-8")
    rows = re.findall(r"^\| (`[^|]+`) \| (?:hash|stream|zset|list|string|set) \|", text, re.MULTILINE)
    names = [name.strip(" `") for row in rows for name in row.split(", ")]
    # The outboxes of a queue and of the app are two keys.
    of_one_slot = [re.sub(r"^\{app\} ", "fq:{<app>}:", name) for name in names]
    assert sorted(of_one_slot) == sorted({*of_one_slot})
    assert "fq:{<app>}:queues" in names
    assert len(names) == sum(len(kind.pattern.split(", ")) for kind in KEY_KINDS)


def test_every_command_that_a_page_mentions_exists_with_these_options() -> None:
    """Also those in running text and in shell blocks, which are not typed anywhere."""
    wrong = [
        f"{page.name}: {text}: {why}"
        for page in WRITTEN
        for text in commands_in(page)
        if (why := refusal_of(text))
    ]
    assert wrong == []


WRITTEN = [page for page in every_page() if page.name not in ("CHANGELOG.md", "cli.md")]
COMMANDS: Any = get_command(program)
FOR_EXAMPLE = {"ID": "mail:42", "…": ""}


def commands_in(page: Path) -> list[str]:
    text = re.sub(r"\\\n\s*", " ", page.read_text("utf-8"))
    inline = re.findall(r"`(fennelq [a-z][^`]*)`", text)
    return [*inline, *re.findall(r"^(?:\$ |ExecStart=\S*/)?(fennelq [a-z].*)$", text, re.MULTILINE)]


def refusal_of(command: str) -> str:
    """Why the command line would not take it; empty when it would. Nothing is run."""
    for placeholder, example in FOR_EXAMPLE.items():
        command = command.replace(placeholder, example)
    words = shlex.split(command, comments=True)[1:]
    if ">" in words:  # the shell takes the rest
        words = words[: words.index(">")]
    now = COMMANDS
    while words and words[0] in getattr(now, "commands", {}):
        now = now.commands[words.pop(0)]
    if not words:
        return ""  # the name of a command, or of a group of them
    try:
        now.make_context(now.name, words)
    except Exception as problem:
        return f"{type(problem).__name__} {problem}"
    return ""
