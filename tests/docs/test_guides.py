"""Every page with code is followed as it is printed, with the worker in another process.

A Python block whose first line is a comment with a file's name is saved as that file. The others of a page are entered
into one interpreter. `console` blocks are typed into a terminal, and must print what is shown. What cannot run here
has a comment above, `<!-- not run: why -->`, and must at least compile.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.conftest import Reader
from tests.docs.pages import ROOT, blocks_of, every_page
from tests.docs.test_newcomers import TUTORIAL

ELSEWHERE = {
    ROOT / "README.md": "test_newcomers.py",
    ROOT / "docs/guides/testing.md": "test_newcomers.py",
    ROOT / "docs/guides/django.md": "test_web.py",
    ROOT / "docs/guides/fastapi.md": "test_web.py",
    ROOT / "docs/guides/troubleshooting.md": "test_troubleshooting.py",
    **dict.fromkeys(TUTORIAL, "test_newcomers.py"),
}
PAGES = [
    page
    for page in every_page()
    if page not in ELSEWHERE and any(block.language in ("python", "console") for block in blocks_of(page))
]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.timeout(400)
@pytest.mark.audit(unfinished=True)
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_does_what_it_shows(page: Path, reader: Reader) -> None:
    reader.follow(page)
