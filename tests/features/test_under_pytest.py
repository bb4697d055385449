"""With pytest running and nothing configured, the project's own embedded server is refused: a worker that a developer
has started would run the jobs of the tests for real."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fennelq import App, ConfigurationError, embedded
from tests.docs.terminal import UNSET
from tests.kit.spawn import PROJECT, Spawner

TASKS = """
from fennelq import App

app = App("shop")


@app.task
async def welcome(user_id: int) -> str:
    return f"sent to user {user_id}"
"""
A_TEST = """
import asyncio
import pytest
from fennelq import ConfigurationError
from tasks import app, welcome


def test_a_call() -> None:
    assert asyncio.run(welcome(42)) == "sent to user 42"


def test_sending() -> None:
    with pytest.raises(ConfigurationError, match="pytest is running"):
        asyncio.run(app.call(welcome.job(42), timeout=10))
    with pytest.raises(ConfigurationError, match="pytest is running"):
        welcome.sync.delay(42)
"""


def sentence(folder: Path) -> str:
    return (
        "no redis_url is set, and pytest is running: the jobs of a test would go to the project's own server in "
        f"{folder}/.fennelq, where a worker of yours would really run them. Write async with "
        "fennelq.testing.testing(app): around the test, or with, for code without a loop. Or give the tests a server "
        "in a directory of their own: at the top of conftest.py, before the app is imported, write "
        'os.environ["FENNELQ_REDIS_URL"] = f"embedded://{tempfile.mkdtemp()}", or pass it as App(redis_url=…). '
        "A plain call, await welcome(42), needs no server; embedded:// uses the project's server all the same"
    )


class Started:
    """What the embedded server would have been started for; it is not."""

    def __init__(self) -> None:
        self.folders: list[Path] = []

    def __call__(self, folder: Path) -> embedded.EmbeddedServer:
        self.folders.append(folder)
        return embedded.EmbeddedServer(folder, folder / "server.sock", -1)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """No server is started; the machine is not taken for a deployment."""
    for name in UNSET:
        monkeypatch.delenv(name, raising=False)
    started = Started()
    monkeypatch.setattr(embedded, "start", started)
    return started


@pytest.fixture
def app(tmp_path: Path) -> App:
    """An app of another project, without settings."""
    (tmp_path / "pyproject.toml").touch()
    app = App("shop")
    app.root = tmp_path
    return app


async def test_the_project_s_own_server_is_refused_at_the_first_connection(
    app: App, started: Started, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        await app.result("mail:7").status()
    assert str(refused.value) == sentence(tmp_path)
    with pytest.raises(ConfigurationError) as refused:
        _ = app.blocking
    assert str(refused.value) == sentence(tmp_path)
    assert started.folders == []


@pytest.mark.parametrize("variable", ["PYTEST_CURRENT_TEST", "PYTEST_VERSION"])
def test_a_process_that_a_test_starts_is_part_of_the_test(
    app: App, started: Started, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside_of_pytest(monkeypatch)
    monkeypatch.setenv(variable, "9.0")
    with pytest.raises(ConfigurationError, match="pytest is running"):
        _ = app.address
    assert started.folders == []


def test_a_process_that_only_imports_pytest_is_not_a_test_session(
    app: App, started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside_of_pytest(monkeypatch)
    assert "pytest" in sys.modules
    assert app.address.path == str(tmp_path / ".fennelq/server.sock")
    assert started.folders == [tmp_path / ".fennelq"]


@pytest.mark.parametrize("where", ["App", "environment", "pyproject"])
@pytest.mark.parametrize("own", [True, False], ids=["of the project", "in a directory"])
def test_a_server_that_is_asked_for_is_used(
    started: Started, where: str, own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def root(_: Path) -> Path:
        return tmp_path

    folder = tmp_path / "jobs"
    url = "embedded://" if own else f"embedded://{folder}"
    monkeypatch.syspath_prepend(str(tmp_path))
    if where == "environment":
        monkeypatch.setenv("FENNELQ_REDIS_URL", url)
    if where == "pyproject":
        text = f'[tool.fennelq]\nredis_url = "{url}"\n'
        (tmp_path / "pyproject.toml").write_text(text)
        monkeypatch.setattr(embedded, "project_root", root)
    app = App("shop", redis_url=url) if where == "App" else App("shop")
    app.root = tmp_path
    _ = app.address
    assert started.folders == [tmp_path / ".fennelq" if own else folder]


def test_a_test_session_of_a_user_is_refused_and_starts_no_server(spawn: Spawner, tmp_path: Path) -> None:
    project = a_project(tmp_path)
    session = spawn(
        "pytest", "-q", "-p", "no:cacheprovider", environment=clean_environment(), directory=project
    )
    assert session.returncode(60) == 0, session.text
    assert "2 passed" in session.text
    assert not (project / ".fennelq").exists()


def test_a_worker_that_a_test_starts_without_a_server_ends_with_the_sentence(
    spawn: Spawner, tmp_path: Path
) -> None:
    project = a_project(tmp_path)
    environment = clean_environment() | {"PYTEST_CURRENT_TEST": "test_shop.py::test_sending (call)"}
    worker = spawn("fennelq", "worker", "-A", "tasks:app", environment=environment, directory=project)
    assert worker.returncode(60) == 78
    assert worker.text.splitlines()[-1] == f"fennelq: {sentence(project)}"
    assert "Traceback" not in worker.text
    assert not (project / ".fennelq").exists()


def a_project(tmp_path: Path) -> Path:
    project = tmp_path / "shop"
    project.mkdir()
    (project / "pyproject.toml").touch()
    (project / "tasks.py").write_text(TASKS)
    (project / "test_shop.py").write_text(A_TEST)
    return project


def outside_of_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    monkeypatch.delenv("PYTEST_VERSION", raising=False)


def clean_environment() -> dict[str, str]:
    """Of a developer's shell: empty variables are as good as none."""
    return dict.fromkeys(("PYTEST_CURRENT_TEST", "PYTEST_VERSION"), "") | {
        "PYTHONPATH": f"{PROJECT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    }
