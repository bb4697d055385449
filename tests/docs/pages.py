"""The pages of the documentation, taken apart: code blocks, headings, links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"

_FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_STAGE = re.compile(r"^<!-- stage: python\n(.*?)^-->$", re.MULTILINE | re.DOTALL)
"""What the page's reader does not do, but what has happened when they turn to the page: a queue is damaged."""
_NOTE = re.compile(r"<!-- (.*?) -->\n+\Z")
_FILE = re.compile(r"# ([\w/]+\.(?:py|toml))(, at its end)?\n")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


class Block(NamedTuple):
    """A code block."""

    page: Path
    line: int
    """Of its first line of code."""
    language: str
    text: str
    note: str
    """The comment right above, like `not run: needs Django`."""

    @property
    def file(self) -> str | None:
        """The file it is, when its first line is a comment with the name of one."""
        found = _FILE.match(self.text)
        return found[1] if found else None

    @property
    def is_added(self) -> bool:
        """Whether it goes to the end of that file, which exists: `# shop/settings.py, at its end`."""
        found = _FILE.match(self.text)
        return bool(found and found[2])

    @property
    def place(self) -> str:
        """Where it stands, for messages."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def every_page() -> list[Path]:
    """Every page that people read."""
    beside = (
        ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md")
    )
    return sorted([*beside, *DOCS.rglob("*.md")])


def blocks_of(page: Path) -> Iterator[Block]:
    """The code blocks of a page, in order, and what sets the stage for them."""
    text = page.read_text("utf-8")
    found = [*_FENCE.finditer(text), *_STAGE.finditer(text)]
    for one in sorted(found, key=lambda one: one.start()):
        before = text[: one.start()]
        note = _NOTE.search(before)
        language, code = one.groups() if one.re is _FENCE else ("python", one[1])
        yield Block(page, before.count("\n") + 2, language, code, note[1] if note else "")


def prose_of(page: Path) -> str:
    """A page without its code blocks and pieces of code."""
    return re.sub(r"`[^`\n]+`", "`code`", _FENCE.sub("", page.read_text("utf-8")))


def links_of(page: Path) -> list[str]:
    """Where a page points to."""
    return [link.removeprefix("<").removesuffix(">") for link in _LINK.findall(prose_of(page))]


def anchors_of(page: Path) -> set[str]:
    """The anchors that the headings of a page get on GitHub and its like."""
    headings = _HEADING.findall(_FENCE.sub("", page.read_text("utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
