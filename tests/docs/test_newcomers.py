"""A newcomer who types what the first pages show gets what they show: no Redis, nothing but this package."""

from __future__ import annotations

import re

import pytest

from tests.docs.conftest import Reader
from tests.docs.pages import DOCS, ROOT

TUTORIAL = sorted((DOCS / "tutorial").glob("[0-9]*.md"))

pytestmark = pytest.mark.timeout(400)


def test_the_readme_does_what_it_shows_and_its_job_succeeds_at_the_first_try(newcomer: Reader) -> None:
    newcomer.follow(ROOT / "README.md")
    log = newcomer.worker_log
    assert log.count("job_succeeded") == 1
    assert " tries=1" in log
    assert not re.findall("job_retries|job_died|warning|error", log)


def test_the_tutorial_does_what_it_shows(newcomer: Reader) -> None:
    newcomer.follow(*TUTORIAL)


def test_the_guide_to_tests_does_what_it_shows(newcomer: Reader) -> None:
    newcomer.follow(DOCS / "guides/testing.md")
