"""The example of a document that is saved many times."""

from __future__ import annotations

import pytest

from examples.debounce import app, main
from fennelq.testing import testing
from tests.kit.workers import running


async def test_a_document_that_is_saved_often_is_indexed_once_with_its_last_text(
    redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with testing(app, redis_url=redis_url, leave_jobs=True), running(app):
        await main()
    printed = capsys.readouterr().out
    assert "saved 9 times, 1 job\n" in printed
    assert "document 7 is indexed: the quick brown fox jumps over the lazy dog\n" in printed
