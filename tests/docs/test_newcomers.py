"""A newcomer who types what the first pages show gets what they show: no Redis, nothing but this package."""

from __future__ import annotations

import pytest

from tests.docs.conftest import Reader
from tests.docs.pages import DOCS, ROOT

TUTORIAL = sorted((DOCS / "tutorial").glob("[0-9]*.md"))

pytestmark = pytest.mark.timeout(180)


def test_the_readme_does_what_it_shows(newcomer: Reader) -> None:
    newcomer.follow(ROOT / "README.md")


def test_the_tutorial_does_what_it_shows(newcomer: Reader) -> None:
    newcomer.follow(*TUTORIAL)


def test_the_guide_to_tests_does_what_it_shows(newcomer: Reader) -> None:
    newcomer.follow(DOCS / "guides/testing.md")
