"""Which App is meant, and that finding out imports nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fennelq import App, ConfigurationError
from fennelq.worker.processes.discovery import find_app, load_app
from tests.kit.modules import forgotten
from tests.kit.spawn import PROJECT

AN_APP = """
from fennelq import App
app = App("shop", redis_url="redis://127.0.0.1:1")
"""
A_TASK = """
@app.task
async def welcome(user_id: int) -> str: return "sent"
"""
CANARY = """
from pathlib import Path
Path(__file__).with_name("imported").touch()
"""


class Folder:
    """The current folder: modules are written into it, and forgotten after the test."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, text: str) -> Path:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    @property
    def imported(self) -> bool:
        """Whether the module with the canary was run."""
        return (self.path / "imported").exists()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    (tmp_path / ".git").mkdir()
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    with forgotten(tmp_path):
        yield Folder(tmp_path)


def refusal(explicit: str | None = None, folder: Path | None = None) -> str:
    """The sentence with which no app is found."""
    with pytest.raises(ConfigurationError) as refused:
        find_app(explicit, folder)
    return str(refused.value)


# The order of what is looked at


def test_what_is_given_comes_before_all_else(here: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two", "three", "app"):
        here.write(f"{name}.py", AN_APP)
    here.write("pyproject.toml", '[tool.fennelq]\napp = "three:app"\n')
    assert find_app().path == "three:app"
    monkeypatch.setenv("FENNELQ_APP", "two:app")
    assert find_app().path == "two:app"
    assert find_app("one:app").path == "one:app"


def test_an_app_found_can_be_loaded_by_another_process(here: Folder) -> None:
    here.write("shop/tasks.py", AN_APP)
    found = find_app("shop.tasks:app")
    assert isinstance(found.app, App)
    assert (found.path, found.how, found.folder) == ("shop.tasks:app", "-A", here.path)
    assert load_app(found.path, found.folder) is found.app
    load = f"load_app({found.path!r}, Path({str(here.path)!r}))"
    code = f"from fennelq.worker.processes.discovery import *; print({load})"
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert child.stdout == "<App shop>\n"


def test_the_app_of_the_nearest_pyproject_is_found_from_below(
    here: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.write("pyproject.toml", '[tool.fennelq]\napp = "shop:app"\n')
    here.write("shop.py", AN_APP)
    below = here.path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    found = find_app()
    assert (found.path, found.folder) == ("shop:app", here.path)
    assert found.how == str(here.path / "pyproject.toml")


def test_a_broken_pyproject_is_named(here: Folder) -> None:
    here.write("pyproject.toml", "[tool.fennelq\n")
    assert str(here.path / "pyproject.toml") in refusal()
    here.write("pyproject.toml", "[tool.fennelq]\napp = 3\n")
    assert "app is a text" in refusal()


def test_another_folder_can_be_named(here: Folder) -> None:
    here.write("elsewhere/jobs.py", AN_APP)
    assert find_app("jobs:app", here.path / "elsewhere").app.name == "shop"
    assert "is not a folder" in refusal("jobs:app", here.path / "nowhere")


# The usual files


@pytest.mark.parametrize("file", ["app.py", "tasks.py", "main.py"])
def test_the_only_app_in_a_usual_file_is_found(here: Folder, file: str) -> None:
    here.write(file, AN_APP.replace("app =", "shop ="))
    assert find_app().path == f"{file.removesuffix('.py')}:shop"


def test_of_one_app_in_two_files_the_one_with_the_tasks_is_named(here: Folder) -> None:
    here.write("app.py", AN_APP)
    here.write("tasks.py", "from app import app\n" + A_TASK)
    found = find_app()
    assert found.path == "tasks:app"
    assert list(found.app.tasks) == ["tasks:welcome"]


def test_two_apps_are_one_too_many(here: Folder) -> None:
    here.write("app.py", AN_APP)
    here.write("main.py", AN_APP)
    sentence = refusal()
    assert "app:app, main:app" in sentence
    assert "-A" in sentence


def test_a_script_that_uses_an_app_is_not_run(here: Folder) -> None:
    here.write("tasks.py", AN_APP + A_TASK)
    here.write("main.py", "from tasks import welcome\n" + CANARY)
    assert find_app().path == "tasks:app"
    assert not here.imported


def test_a_file_that_has_nothing_to_do_with_fennelq_is_not_run(here: Folder) -> None:
    here.write("app.py", CANARY)
    assert "app.py: imports neither fennelq nor a neighbour" in refusal()
    assert not here.imported


def test_without_an_app_all_that_was_looked_at_is_listed(here: Folder) -> None:
    here.write("tasks.py", "from fennelq import App\n")
    sentence = refusal()
    for looked_at in (
        "-A",
        "FENNELQ_APP",
        "pyproject.toml",
        "app.py: not there",
        "tasks.py: holds no App",
        "main.py",
    ):
        assert looked_at in sentence


# What may be given


@pytest.mark.parametrize(
    "hostile",
    [
        "",
        ":",
        "canary:",
        ":app",
        "canary:app()",
        "canary:app.name",
        "__import__('canary')",
        "canary;canary:app",
        "canary:app\n",
        "canary\n:app",
        "../canary:app",
        "/canary:app",
        ".canary:app",
        "1canary:app",
        "canary canary:app",
        "canary:app:app",
        "canary:" + "a" * 10_000 + "!",
        "$(touch imported)",
    ],
)
@pytest.mark.parametrize("where", ["-A", "FENNELQ_APP"])
def test_hostile_names_import_nothing(
    here: Folder, hostile: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.write("canary.py", AN_APP + CANARY)
    if where == "FENNELQ_APP":
        monkeypatch.setenv("FENNELQ_APP", hostile)
    sentence = refusal(hostile if where == "-A" else None)
    assert len(sentence) < 1000
    assert not here.imported
    assert "canary" not in sys.modules


def test_a_file_name_is_answered_with_the_module_s(here: Folder) -> None:
    assert "did you mean shop.tasks:app?" in refusal("shop/tasks.py:app")
    assert "did you mean tasks?" in refusal("./tasks.py")
    assert "did you mean shop.tasks:app?" in refusal("shop/tasks:app")
    assert "did you mean shop.tasks?" in refusal("shop/tasks")


def test_a_dot_before_the_app_is_answered_with_the_colon_that_belongs_there(here: Folder) -> None:
    here.write("tasks.py", AN_APP)
    assert refusal("tasks.app") == "tasks is a module and 'app' is in it: write tasks:app, with a colon"


def test_a_function_that_makes_the_app_is_answered_with_what_to_write(here: Folder) -> None:
    here.write("shop.py", "from fennelq import App\ndef create_app(): return App('shop')\n")
    assert refusal("shop:create_app") == (
        "shop:create_app is a function, not a fennelq App: call it in the module, like app = create_app(), "
        "and name shop:app"
    )


def test_a_task_is_not_an_app(here: Folder) -> None:
    here.write("shop.py", AN_APP + A_TASK)
    assert refusal("shop:welcome") == "shop:welcome is an AsyncTask object, not a fennelq App; known: app"


def test_a_file_named_like_another_module_is_distinguished_from_it(here: Folder) -> None:
    file = here.write("queue.py", AN_APP)
    import queue

    assert refusal("queue:app") == (
        f"queue is another module, {queue.__file__}, which was imported instead of {file}: give the file another name"
    )
    file = here.write("sys.py", AN_APP)
    assert refusal("sys:app") == (
        f"sys is another module, built into Python, which was imported instead of {file}: give the file another name"
    )


def test_an_error_below_the_first_line_of_the_user_shows_the_user_s_frames_only(here: Folder) -> None:
    rates = here.write("rates.py", "def load():\n    raise LookupError('no rates')\n")
    shop = here.write("shop.py", "import rates\nrates.load()\n")
    assert refusal("shop:app") == (
        f"shop cannot be imported: {rates}, line 2: LookupError: no rates\n"
        f'  File "{shop}", line 2, in <module>\n    rates.load()\n'
        f"  File \"{rates}\", line 2, in load\n    raise LookupError('no rates')"
    )


def test_a_module_alone_is_enough_when_it_holds_one_app(here: Folder) -> None:
    here.write("one.py", AN_APP)
    here.write("two.py", AN_APP + "other = App('other')\n")
    here.write("none.py", "")
    assert find_app("one").path == "one:app"
    assert "holds several: app, other" in refusal("two")
    assert "holds none" in refusal("none")


def test_what_is_named_must_be_an_app(here: Folder) -> None:
    here.write("shop.py", AN_APP + "number = 3\n")
    assert refusal("shop:number") == "shop:number is an int object, not a fennelq App; known: app"
    assert "shop has no 'ap': did you mean 'app'?" in refusal("shop:ap")
    assert "os:system is a function, not a fennelq App" in refusal("os:system")


# What goes wrong in the user's own code


def test_a_missing_module_is_reported_as_missing(here: Folder) -> None:
    sentence = refusal("shop.tasks:app")
    assert "No module named 'shop'" in sentence
    assert str(here.path) in sentence
    assert "--app-dir" in sentence


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("import no_such_thing", "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("from fennelq import Ap", "ImportError: cannot import name 'Ap'"),
        ("1 / 0", "ZeroDivisionError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_an_error_in_the_user_s_module_names_its_line(here: Folder, line: str, error: str) -> None:
    file = here.write("shop.py", f"# a comment\n\n{line}\n")
    sentence = refusal("shop:app")
    assert f"{file}, line 3: {error}" in sentence


def test_a_syntax_error_names_its_line(here: Folder) -> None:
    file = here.write("shop.py", "x = 1\ny = = 2\n")
    assert f"{file}, line 2: invalid syntax" in refusal("shop:app")


def test_an_error_in_a_library_names_the_user_s_line_that_led_to_it(here: Folder) -> None:
    file = here.write("shop.py", "\nimport json\njson.loads('{')\n")
    assert f"{file}, line 3: JSONDecodeError" in refusal("shop:app")
    file = here.write("shop.py", "\nfrom fennelq import App\nApp('s h o p')\n")
    assert "app name 's h o p' is not valid" in refusal("shop:app")


def test_a_wrong_setting_is_reported_as_it_is(here: Folder) -> None:
    here.write("shop.py", 'from fennelq import App\napp = App("shop", leese=3)\n')
    assert refusal("shop:app") == (
        f"App(…): unknown setting 'leese': did you mean 'lease'? ({here.path / 'shop.py'}, line 2)"
    )


def test_a_mistake_in_a_declaration_names_its_line(here: Folder) -> None:
    file = here.write("shop.py", AN_APP + "\n\napp.task(lambda: 1)\n")
    assert refusal("shop:app").endswith(f" ({file}, line 6)")


# Names of tasks


@pytest.mark.parametrize(
    ("command", "module"),
    [(["tasks.py"], "tasks"), (["-m", "tasks"], "tasks"), (["-m", "shop.tasks"], "shop.tasks")],
)
def test_a_task_has_the_same_name_in_a_script_and_in_the_worker(
    here: Folder, command: list[str], module: str
) -> None:
    text = AN_APP + A_TASK + "if __name__ == '__main__': print(*app.tasks)\n"
    here.write("tasks.py", text)
    here.write("shop/tasks.py", text)
    environment = {"PYTHONPATH": str(PROJECT)}
    script = subprocess.run(
        [sys.executable, *command], cwd=here.path, env=environment, capture_output=True, text=True, check=True
    )
    assert script.stdout.split() == list(find_app(f"{module}:app").app.tasks) == [f"{module}:welcome"]


def test_services_that_share_an_app_are_distinguished_by_the_module_they_are_started_with(
    here: Folder,
) -> None:
    here.write("common.py", AN_APP)
    for module in ("orders", "mails"):
        here.write(f"{module}.py", "from common import app\n" + A_TASK.replace("welcome", module))
    assert load_app("orders:app", here.path).service == "orders:shop"
    assert load_app("mails:app", here.path).service == "mails:shop"
    assert find_app("mails").app.service == "mails:shop"


def test_a_service_that_is_found_has_the_name_that_its_processes_will_have(here: Folder) -> None:
    here.write("app.py", AN_APP)
    here.write("tasks.py", "from app import app\n" + A_TASK)
    found = find_app()
    assert found.path == "tasks:app"
    assert found.app.service == load_app(found.path, found.folder).service == "tasks:shop"
