"""The documentation says of the code what the code says of itself."""

from __future__ import annotations

import re
import subprocess
import sys

from fennelq.broker.keys import KEY_KINDS
from tests.docs.pages import DOCS, ROOT, anchors_of, every_page

ARROWS = sorted(path.stem for path in (ROOT / "fennelq/broker/lua").glob("*.lua"))


def test_the_generated_pages_are_up_to_date() -> None:
    checked = subprocess.run(
        [sys.executable, str(DOCS / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_every_arrow_has_a_paragraph_of_its_name() -> None:
    assert [arrow for arrow in ARROWS if arrow not in anchors_of(DOCS / "concepts/life-cycle.md")] == []


def test_every_decision_says_its_context_and_what_was_given_up() -> None:
    for page in (DOCS / "adr").glob("0*.md"):
        assert {"context", "decision", "what-was-given-up"} <= anchors_of(page), page.name


def test_no_page_names_a_path_of_somebodys_machine() -> None:
    private = re.compile(r"/(?:home|root|tmp|Users)/")
    assert [page.name for page in every_page() if private.search(page.read_text("utf-8"))] == []


def test_the_reference_lists_every_key_once() -> None:
    """By its whole name: `fq:{<app>}:queues` and `{app} queues` would be the same key."""
    text = (DOCS / "reference/keys.md").read_text("utf-8")
    rows = re.findall(r"^\| (`[^|]+`) \| (?:hash|stream|zset|list|string|set) \|", text, re.MULTILINE)
    names = [name.strip(" `") for row in rows for name in row.split(", ")]
    short = [re.sub(r"^(fq:\{<app>\}:|\{app\} )", "", name) for name in names]
    assert sorted(short) == sorted({*short})
    assert "fq:{<app>}:queues" in names
    assert len(names) == sum(len(kind.pattern.split(", ")) for kind in KEY_KINDS)
