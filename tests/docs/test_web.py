"""The guides to web frameworks, followed as printed: real web servers, a real worker, requests over HTTP.

Their code is that of the examples, so that there is one version of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.conftest import Reader
from tests.docs.pages import DOCS, ROOT, Block, blocks_of

DJANGO = DOCS / "guides/django.md"
FASTAPI = DOCS / "guides/fastapi.md"

pytestmark = pytest.mark.timeout(400)


def files_of(page: Path) -> list[Block]:
    return [block for block in blocks_of(page) if block.file]


def test_the_guide_to_django_does_what_it_shows(newcomer: Reader) -> None:
    newcomer.follow(DJANGO)


@pytest.mark.parametrize("block", files_of(DJANGO), ids=lambda block: block.file)
def test_the_guide_to_django_shows_the_code_of_the_example(block: Block) -> None:
    example = (ROOT / "examples/django" / str(block.file)).read_text("utf-8")
    assert example.endswith(block.text) if block.is_added else example == block.text


def test_the_guide_to_fastapi_does_what_it_shows(newcomer: Reader) -> None:
    newcomer.follow(FASTAPI)


@pytest.mark.parametrize("block", files_of(FASTAPI), ids=lambda block: block.file)
def test_the_guide_to_fastapi_shows_the_code_of_the_example(block: Block) -> None:
    """Without the docstring of the module, and in a folder of its own."""
    example = (ROOT / "examples/webapp" / str(block.file)).read_text("utf-8")
    shown = example.partition('"""\n\n')[2].replace("examples.webapp.", "")
    assert f"# {block.file}\n{shown}" == block.text
