"""The pytest plugin: fixtures for users' projects, which cost nothing where they are not used."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.kit.spawn import PROJECT, Spawner

TASKS = """
from fennelq import App

app = App("shop")


@app.task(queue="mail")
async def welcome(user_id: int) -> str:
    return f"sent to user {user_id}"
"""
TESTS = """
import gc
import os
from pathlib import Path

import pytest
from fennelq import App
from fennelq.testing import Testing, testing
from tasks import app, welcome


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_in_a_loop(fennelq_test, fennelq_server):
    result = await welcome.delay(1)
    assert (await fennelq_test.run_until_idle()).succeeded == 1
    assert await result.get(timeout=0) == "sent to user 1"
    Path(f"server-{os.environ['PYTEST_XDIST_WORKER']}").write_text(fennelq_server.url)


def test_without_a_loop(fennelq_test):
    result = welcome.sync.delay(2)
    assert fennelq_test.sync.run_until_idle().succeeded == 1
    assert result.get(timeout=0) == "sent to user 2"


def test_nothing_is_left_open():
    gc.collect()


async def test_that_leaves_a_job(fennelq_test):
    await welcome.delay(3)


@pytest.mark.fennelq(leave_jobs=True)
async def test_that_may_leave_a_job(fennelq_test):
    await welcome.delay(4)


async def test_that_fails_and_leaves_a_job(fennelq_test):
    await welcome.delay(5)
    raise LookupError("its own error")


class TestAnotherApp:
    @pytest.fixture
    def fennelq_app(self):
        return App("other")

    def test_is_used(self, fennelq_test):
        assert fennelq_test.app.name == "other"
"""
SETTINGS = """
[tool.fennelq]
app = "tasks:app"

[tool.pytest.ini_options]
anyio_mode = "auto"
filterwarnings = ["error"]
"""


def test_the_plugin_imports_nothing_but_itself() -> None:
    code = (
        "import sys, json, pytest; before = {*sys.modules}; import pytest_fennelq; "
        "print(json.dumps(sorted({*sys.modules} - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == ["pytest_fennelq"]


def test_pytest_finds_the_plugin_in_the_wheel() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["entry-points"]["pytest11"] == {"pytest_fennelq": "pytest_fennelq"}
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"pytest_fennelq.py": "pytest_fennelq.py"}
    assert "fennelq/testing/*.lua" in wheel["artifacts"]


def test_its_fixtures_work_in_a_project_under_xdist(spawn: Spawner, tmp_path: Path) -> None:
    """Both workers run all tests at the same time."""
    project = tmp_path / "shop"
    project.mkdir()
    for name, text in {"tasks.py": TASKS, "test_shop.py": TESTS, "pyproject.toml": SETTINGS}.items():
        (project / name).write_text(text)
    plugins = ("xdist.plugin", "anyio.pytest_plugin", "pytest_fennelq", "no:cacheprovider")
    flags = [*(f"-p{plugin}" for plugin in plugins), "-n2", "--dist=each"]
    environment = {"PYTHONPATH": str(PROJECT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    session = spawn("pytest", "-q", *flags, environment=environment, directory=project)
    assert session.returncode(60) == 1, session.text
    assert "2 failed, 12 passed, 2 errors" in session.text
    left = re.findall(r"^E +AssertionError: 1 job is left.*\n^E +mail:\S+ (.*)$", session.text, re.MULTILINE)
    assert left == ["tasks:welcome(user_id=3) SENT"] * 2
    assert re.findall(r"^E +LookupError: (.*)$", session.text, re.MULTILINE) == ["its own error"] * 2
    servers = {path.read_text() for path in project.glob("server-gw*")}
    assert len(servers) == 2
    assert not any(Path(url.removeprefix("unix://")).parent.exists() for url in servers)
