"""Every page is reachable, and every link leads somewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, anchors_of, every_page, links_of

WITHOUT = ("http://", "https://", "mailto:")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", every_page(), ids=name)
def test_every_relative_link_leads_to_a_file_and_a_heading_that_exist(page: Path) -> None:
    wrong = [
        link for link in links_of(page) if not link.startswith(WITHOUT) and not leads_somewhere(page, link)
    ]
    assert not wrong


def test_every_page_is_reached_from_the_index() -> None:
    reached, ahead = set[Path](), [DOCS / "index.md"]
    while ahead:
        page = ahead.pop()
        if page not in reached:
            reached.add(page)
            ahead += [target for link in links_of(page) if (target := target_of(page, link)).suffix == ".md"]
    assert [name(page) for page in DOCS.rglob("*.md") if page not in reached] == []


def leads_somewhere(page: Path, link: str) -> bool:
    target, _, anchor = link.partition("#")
    file = target_of(page, target)
    return file.exists() and (not anchor or anchor in anchors_of(file))


def target_of(page: Path, link: str) -> Path:
    path = link.partition("#")[0]
    return (page.parent / path).resolve() if path and not path.startswith(WITHOUT) else page
