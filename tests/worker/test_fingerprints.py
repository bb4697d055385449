"""Fingerprints of real tracebacks: which failures of tasks belong together."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import orjson
import pytest
from structlog.testing import capture_logs

from fennelq import App, ConfigurationError, Reject, Retry
from fennelq.model.fingerprint import fingerprint_of, fingerprint_of_text, is_fingerprint
from fennelq.model.outcome import Outcome
from fennelq.worker.running.runner import Runner
from tests.kit.apps import LocalApp
from tests.worker import cramped
from tests.worker.test_cells import ended as ended_in_a_cell
from tests.worker.test_cells import runner as runner  # a fixture
from tests.worker.test_runner import delivery, held_by, run, runner_of, time_out

DEPLOYED = """
class Refused(Exception): ...

def check(n):
    raise Refused(f"no money for order {n}")

async def charge(n: int = 1):
    check(n)

def charge_in_thread(n: int = 1):
    check(n)

async def refund(n: int = 1):
    raise Refused(f"no money for order {n}")

async def parse(text: str = "{"):
    import json
    json.loads(text)
"""
MOVED = "# a comment\n\n\nONE_MORE = 1\n" + DEPLOYED.replace("raise Refused", "n += 0\n    raise Refused")


def deployed(folder: Path, source: str) -> Any:
    """The module `fixes`, as it is after this deploy."""
    file = folder / "fixes.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location("fixes", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # The next deploy may follow within the same second.
    sys.modules.pop("fixes", None)
    exec(compile(source, str(file), "exec"), module.__dict__)
    return module


def sign_of(outcome: Outcome) -> str:
    """The fingerprint that an outcome carries."""
    return str(cast("dict[str, Any]", orjson.loads(outcome.error))["f"])


async def died_of(function: Callable[..., Any], *args: Any, **given: Any) -> str:
    return sign_of(await run(function, orjson.dumps([args, {}]), retries=0, **given))


async def test_a_deploy_that_moves_lines_does_not_split_a_group(tmp_path: Path) -> None:
    before, after = deployed(tmp_path, DEPLOYED), deployed(tmp_path, MOVED)
    for name in ("charge", "charge_in_thread", "refund"):
        assert await died_of(getattr(before, name)) == await died_of(getattr(after, name))


async def test_an_order_number_in_the_message_does_not_split_a_group(tmp_path: Path) -> None:
    module = deployed(tmp_path, DEPLOYED)
    assert await died_of(module.charge, 17) == await died_of(module.charge, 4211)


async def test_a_group_is_named_by_reason_task_type_and_the_users_own_function(tmp_path: Path) -> None:
    module = deployed(tmp_path, DEPLOYED)
    for name, place in (("charge", "check"), ("charge_in_thread", "check"), ("refund", "refund")):
        made = fingerprint_of("failed", "shop:task", "fixes.Refused", f"fixes:{place}")
        assert await died_of(getattr(module, name)) == made


async def test_code_of_the_standard_library_is_not_the_users_own(tmp_path: Path) -> None:
    module = deployed(tmp_path, DEPLOYED)
    made = fingerprint_of("failed", "shop:task", "json.decoder.JSONDecodeError", "fixes:parse")
    assert await died_of(module.parse) == made
    assert await died_of(module.parse, "[") == made


async def test_a_try_that_is_followed_by_another_has_the_fingerprint_of_its_death(tmp_path: Path) -> None:
    module = deployed(tmp_path, DEPLOYED)
    assert sign_of(await run(module.charge, retries=3)) == await died_of(module.charge)


async def rejects() -> None:
    raise Reject("not today")


async def asks_for_more() -> None:
    raise Retry(reason="later")


async def returns_what_cannot_be_written() -> object:
    return object()


async def takes(n: int) -> None: ...


async def test_other_deaths_have_fingerprints_of_their_own() -> None:
    signs = {
        await died_of(rejects),
        await died_of(asks_for_more),
        await died_of(returns_what_cannot_be_written),
        await died_of(takes, "no number"),
    }
    assert len(signs) == 4
    assert all(map(is_fingerprint, signs))


async def test_arguments_that_cannot_be_read_belong_together_whatever_their_values() -> None:
    assert await died_of(takes, "anna") == await died_of(takes, "bert")
    assert await died_of(takes, "anna") != await died_of(takes)


async def test_an_unknown_task_has_a_fingerprint() -> None:
    app = LocalApp("shop", redis_url="redis://127.0.0.1:1/0")
    held = held_by(asyncio.current_task(), delivery(task="shop:nosuch"))
    assert is_fingerprint(sign_of(await runner_of(app).run(held, time_out)))


@pytest.mark.parametrize("kind", ["missing", "retry", "reject", "exit", "unspeakable"])
async def test_a_task_in_a_process_of_its_own_has_its_fingerprint_from_there(
    runner: Runner, kind: str
) -> None:
    name = f"{cramped.__name__}:fail"
    made = cast("dict[str, Any]", orjson.loads((await ended_in_a_cell(runner, "fail", kind)).error))
    assert made["f"] == fingerprint_of(made["reason"], name, made["type"], name)


async def test_a_process_that_crashes_is_told_apart_by_how_it_ended(runner: Runner) -> None:
    assert is_fingerprint(sign_of(await ended_in_a_cell(runner, "die", "exit")))


# The app decides


async def refuse() -> None:
    raise ConnectionError("the bank hung up")


def app_that_signs(fingerprint: Any) -> App:
    app = LocalApp("shop", redis_url="redis://127.0.0.1:1/0", fingerprint=fingerprint)
    app.task(name="shop:task", retries=0)(refuse)
    return app


async def chosen_by(fingerprint: Any) -> str:
    held = held_by(asyncio.current_task(), delivery())
    return sign_of(await runner_of(app_that_signs(fingerprint)).run(held, time_out))


@pytest.mark.parametrize(
    ("chosen", "made"),
    [
        ("0000BEEF", "0000beef"),
        ("the bank", fingerprint_of_text("the bank")),
        (None, fingerprint_of("failed", "shop:task", "ConnectionError", f"{__name__}:refuse")),
    ],
)
async def test_the_function_of_an_app_decides_what_belongs_together(chosen: str | None, made: str) -> None:
    seen: list[tuple[str, str]] = []

    def fingerprint(task: str, error: BaseException) -> str | None:
        seen.append((task, str(error)))
        return chosen

    assert await chosen_by(fingerprint) == made
    assert seen == [("shop:task", "the bank hung up")]


def leaves(task: str, error: BaseException) -> str:
    raise SystemExit("enough")


def returns_a_number(task: str, error: BaseException) -> Any:
    return 17


def returns_nothing(task: str, error: BaseException) -> str:
    return ""


def takes_nothing() -> str:
    return "x"


@pytest.mark.parametrize("function", [leaves, returns_a_number, returns_nothing, takes_nothing])
async def test_a_function_that_fails_is_reported_once_and_the_usual_fingerprint_is_used(
    function: Any,
) -> None:
    runner = runner_of(app_that_signs(function))
    usual = fingerprint_of("failed", "shop:task", "ConnectionError", f"{__name__}:refuse")
    with capture_logs() as logged:
        for _ in range(3):
            held = held_by(asyncio.current_task(), delivery())
            assert sign_of(await runner.run(held, time_out)) == usual
    (line,) = [line for line in logged if line["event"] == "fingerprint_failed"]
    assert line["log_level"] == "warning"


async def async_function(task: str, error: BaseException) -> str:
    return task


@pytest.mark.parametrize("given", ["0000beef", 17, async_function])
def test_what_cannot_make_fingerprints_is_refused_by_the_app(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="takes a function of the task's name and the exception"):
        LocalApp("shop", fingerprint=given)
