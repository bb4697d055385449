"""Trouble with Redis on the command line: the sentence of the API, and an exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from fennelq.broker.connection import masked
from fennelq.cli.exits import Exit
from tests.cli.conftest import ignore
from tests.cli.shop import Shop
from tests.kit.troubles import CASES, Case

FIRST_COMMAND = {"few rights": "time", "sentinel": "info"}


@pytest.mark.parametrize("name", CASES)
def test_every_trouble_is_one_sentence_and_an_exit_code(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fennelq.log.setup", ignore)
    monkeypatch.setenv("FENNELQ_ENQUEUE_TIMEOUT", "1")
    case: Case = CASES[name]
    code = Exit.CONFIGURATION if case.lasting else Exit.UNAVAILABLE
    with case.make(tmp_path) as url:
        monkeypatch.setenv("FENNELQ_REDIS_URL", url)
        sentence = case.sentence(masked(url), FIRST_COMMAND.get(name, ""))
        shop = Shop(folder)
        assert shop.run("enqueue", "welcome", "1") == (code, "", f"fennelq: {sentence}\n")
        if not case.reads:
            assert shop.run("queue", "list") == (code, "", f"fennelq: {sentence}\n")
