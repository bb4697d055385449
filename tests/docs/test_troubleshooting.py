"""What do I do when …: each of these troubles is made, and the page's commands show it as printed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.conftest import Reader, folder_in, readers
from tests.docs.pages import DOCS
from tests.docs.terminal import Terminal


@pytest.fixture
def troubled(tmp_path: Path, redis_url: str) -> Iterator[Reader]:
    """A reader with a Redis whose workers lose patience sooner: by default a killed executor is noticed after 15 s."""
    environment = {
        "FENNELQ_REDIS_URL": redis_url,
        "FENNELQ_LEASE": "1",
        "FENNELQ_STOP_GRACE": "0.2",
        "FENNELQ_GRACE_PERIOD": "0",
        "FENNELQ_ENQUEUE_TIMEOUT": "1",
    }
    yield from readers(tmp_path, Terminal(folder_in(tmp_path), tmp_path, environment=environment))


@pytest.mark.timeout(400)
@pytest.mark.audit(skip="the page damages a queue")
def test_the_page_for_people_in_trouble_shows_what_they_see(troubled: Reader) -> None:
    troubled.follow(DOCS / "guides/troubleshooting.md")
