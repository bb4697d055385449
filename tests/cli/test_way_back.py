"""`fennelq dlq replay --dry-run --canary --set --map`, `edit`, `export` and `import`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from fennelq import App
from fennelq.cli.exits import Exit
from fennelq.manage.dead.search import MANY_CAUSES
from tests.cli.shop import Shop
from tests.cli.terminal import Terminal
from tests.kit.groups import count_as_other
from tests.kit.server import Server
from tests.kit.spawn import PROJECT, Spawner
from tests.kit.waiting import eventually
from tests.kit.workers import running_aside

FIXES = """
from fennelq import Shared

def add_one(arguments):
    return {"n": arguments["n"] + 1}

def only_even(arguments):
    return arguments if arguments["n"] % 2 == 0 else None

def only_even_plus_one(arguments):
    return add_one(arguments) if arguments["n"] % 2 == 0 else None

calls = 0

def fails_at_seven(arguments):
    global calls
    calls += 1
    if calls == 7:
        raise KeyError("currency")
    return arguments

def gives_text(arguments):
    return {"n": "many"}
"""


@pytest.fixture
def fixes(shop: Shop) -> Shop:
    """The shop, with a module of fixes."""
    (shop.folder / "fixes.py").write_text(FIXES)
    return shop


def dead(shop: Shop) -> list[str]:
    """The ids of the dead jobs, the oldest first."""
    return [row[1] for row in shop.ok("dlq", "list", "--oldest", "-n", "0").rows]


def arguments(shop: Shop, job: str) -> Any:
    """The arguments as the record has them, which no command shows if they are secret."""

    async def read(app: App) -> Any:
        info = await app.client.info(job)
        assert info is not None
        return json.loads(info.arguments)

    return shop.do(read)


def test_the_jobs_without_a_group_of_their_own_are_listed_but_not_moved_together(
    shop: Shop, server: Server
) -> None:
    ids = shop.kill(2)
    count_as_other(server, "shop", "default")
    assert [row[1] for row in shop.ok("dlq", "list", "--oldest", "--fingerprint", "other").rows] == ids
    for command in (("replay",), ("replay", "--dry-run"), ("purge", "--yes"), ("purge", "--dry-run")):
        answer = shop.run("dlq", *command, "--fingerprint", "other")
        assert answer.code == Exit.USAGE
        assert MANY_CAUSES in " ".join(answer.err.split())
    assert dead(shop) == ids


# The plan


def test_a_dry_run_shows_five_jobs_and_what_cannot_go_back(shop: Shop) -> None:
    ids = shop.kill(7)
    answer = shop.ok("dlq", "replay", "--dry-run")
    assert answer.out.splitlines()[0] == "7 dead jobs would be replayed"
    assert [row[1] for row in answer.rows[1:]] == ids[:5]
    assert answer.err == "5 of 7 shown: `fennelq dlq list` lists more\n"
    plan = shop.ok("dlq", "replay", "--dry-run", "--json").json
    assert (plan["count"], plan["ready"], plan["key_taken"], plan["broken"], plan["skipped"]) == (
        7,
        7,
        0,
        0,
        0,
    )
    assert [letter["id"] for letter in plan["samples"]] == ids[:5]
    assert list(plan["newest"]) == ["default"]
    assert dead(shop) == ids


@pytest.mark.audit(skip="a record was robbed of its arguments")
def test_a_dry_run_names_what_cannot_go_back(shop: Shop) -> None:
    job, _ = shop.kill(2)

    async def rob(app: App) -> None:
        from fennelq.broker.verb import Command

        record = app.client.keys("default").record(job.partition(":")[2])
        await app.client.broker.ask(Command(["HDEL", record, "a"], int))

    shop.do(rob)
    first = shop.ok("dlq", "replay", "--dry-run").out.splitlines()[0]
    assert (
        first
        == "1 dead jobs would be replayed; 1 still dead, because their records cannot be read".replace(
            "jobs", "job"
        )
    )


def test_a_dry_run_of_new_arguments_checks_them(fixes: Shop) -> None:
    ids = fixes.kill(4)
    answer = fixes.ok("dlq", "replay", "--dry-run", "--map", "fixes:only_even")
    assert answer.out.splitlines()[0] == (
        "2 dead jobs would be replayed; 2 still dead, because they got no new arguments"
    )
    refused = fixes.run("dlq", "replay", "--dry-run", "--set", "n=many")
    assert refused.code == Exit.USAGE
    assert "parameter 'n'" in refused.err
    assert dead(fixes) == ids


def test_a_dry_run_shows_the_old_and_the_new_arguments(fixes: Shop) -> None:
    ids = fixes.kill(7)
    rows = fixes.ok("dlq", "replay", "--dry-run", "--map", "fixes:only_even_plus_one").rows[1:]
    assert [(row[1], *row[5:]) for row in rows] == [
        (ids[n], f'{{"n":{n}}}', f'{{"n":{n + 1}}}') for n in (0, 2, 4, 6)
    ]
    plan = fixes.ok("dlq", "replay", "--dry-run", "--set", "n=42", "--json").json
    shown = [(one["id"], one["old_arguments"], one["new_arguments"]) for one in plan["samples"]]
    assert shown == [(ids[n], {"n": n}, {"n": 42}) for n in range(5)]
    for columns in (60, 120):
        words = ("dlq", "replay", "--dry-run", "--set", "n=42")
        lines = Terminal(*words, folder=fixes.folder, columns=columns, NO_COLOR="1").lines()
        (head,) = [line for line in lines if "OLD ARGUMENTS" in line]
        assert head.rstrip().endswith("OLD ARGUMENTS  NEW ARGUMENTS")
        assert all(len(line) <= columns for line in lines[lines.index(head) :])
        assert sum('{"n":42}' in line for line in lines) == 5


def test_a_dry_run_shows_only_the_arguments_that_change(shop: Shop) -> None:
    """Of a long text that stays as it is, a narrow terminal shows only the beginning."""
    tasks = shop.folder / "tasks.py"
    more = "@app.task(retries=0)\nasync def rename(text: str, name: str) -> None:\n    raise ValueError\n"
    tasks.write_text(f"{tasks.read_text()}\n{more}")
    shop.ok("enqueue", "rename", "long " * 1000, "anna")
    shop.work()
    [_, row] = shop.ok("dlq", "replay", "--dry-run", "--set", "name=\x1b[2J\u202ebert").rows
    assert row[5:] == ['{"name":"anna"}', '{"name":"\\u001b[2J\\u202ebert"}']


# A few first


def test_when_a_canary_dies_again_the_others_are_untouched(shop: Shop) -> None:
    ids = shop.kill(20)
    with capture_logs(), running_aside(shop.app):
        answer = shop.run("dlq", "replay", "--canary", "5", "--canary-timeout", "60s")
    assert answer.code == Exit.FAILED
    assert answer.out == "5 dead jobs replayed; 15 untouched\n"
    assert answer.err.startswith("fennelq: stopped: 5 of 5 canary jobs died as before, default:")
    assert sorted(dead(shop)) == sorted(ids)
    replays = [shop.ok("job", "show", job, "--json").json["replays"] for job in ids]
    assert replays == [1] * 5 + [0] * 15


def test_when_a_canary_does_not_end_the_others_are_untouched(shop: Shop) -> None:
    ids = shop.kill(4)
    answer = shop.run("dlq", "replay", "--canary", "1", "--canary-timeout", "50ms", "--json")
    assert answer.code == Exit.FAILED
    assert (answer.json["replayed"], "have not ended within 0.05 s" in answer.json["stopped"]) == (1, True)
    assert dead(shop) == ids[1:]


def test_a_replay_that_is_killed_and_run_again_sends_each_job_once(fixes: Shop, spawn: Spawner) -> None:
    ids = fixes.kill(60)
    words = ("dlq", "replay", "--rate", "10", "--map", "fixes:add_one")
    replay = spawn("fennelq", *words, directory=fixes.folder, environment={"PYTHONPATH": str(PROJECT)})
    eventually(lambda: len(dead(fixes)) < 60, within=60)
    replay.kill(group=True)
    replay.returncode()
    fixes.ok("dlq", "replay", "--map", "fixes:add_one")
    infos = [fixes.ok("job", "show", job, "--json").json for job in ids]
    assert [info["replays"] for info in infos] == [1] * 60
    assert [info["arguments"] for info in infos] == [[[n + 1], {}] for n in range(60)]


# The bars


class Bar:
    """A progress bar, with its width in items and how far it got."""

    def __init__(self, length: int, label: str, file: object) -> None:
        self.length, self.label, self.pos = length, label, 0

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, items: int) -> None:
        self.pos += items


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[Bar]:
    """The bars that a terminal would show."""
    shown: list[Bar] = []

    def begin(**how: Any) -> Bar:
        shown.append(Bar(**how))
        return shown[-1]

    def is_terminal(_: object) -> bool:
        return True

    monkeypatch.setattr("fennelq.cli.steps.is_terminal", is_terminal)
    monkeypatch.setattr("typer.progressbar", begin)
    monkeypatch.setenv("TERM", "xterm")
    return shown


def test_the_bar_of_an_export_is_full_at_the_end(shop: Shop, bars: list[Bar]) -> None:
    shop.kill(3)
    shop.ok("dlq", "export", "-o", "dead.jsonl")
    assert [(bar.label, bar.pos, bar.length) for bar in bars] == [("Exporting", 3, 3)]


def test_the_bar_of_a_replay_does_not_count_jobs_that_stay_dead(fixes: Shop, bars: list[Bar]) -> None:
    fixes.kill(5)
    out = fixes.ok("dlq", "replay", "--map", "fixes:only_even").out
    assert out == "3 dead jobs replayed; 2 still dead, because they got no new arguments\n"
    assert [(bar.label, bar.pos, bar.length) for bar in bars] == [("Checking", 5, 5), ("Replaying", 3, 3)]


def test_the_bar_of_a_replay_that_has_stopped_is_not_full(shop: Shop, bars: list[Bar]) -> None:
    shop.kill(4)
    shop.run("dlq", "replay", "--canary", "1", "--canary-timeout", "50ms")
    assert [(bar.label, bar.pos, bar.length) for bar in bars] == [("Checking", 4, 4), ("Replaying", 1, 4)]


# New arguments


def test_arguments_are_set_by_name(shop: Shop) -> None:
    ids = shop.kill(2)
    assert shop.ok("dlq", "replay", "--set", "n=42").out == "2 dead jobs replayed\n"
    assert [arguments(shop, job) for job in ids] == [[[42], {}]] * 2
    [line] = [
        line
        for line in shop.ok("job", "show", ids[1], "--json").json["history"]
        if line["what"] == "replayed"
    ]
    assert line["more"].endswith('with new arguments; before: {"n":1}')


def test_a_value_that_is_no_number_for_the_task_is_a_text(shop: Shop) -> None:
    tasks = shop.folder / "tasks.py"
    tasks.write_text(
        tasks.read_text()
        + """
@app.task(retries=0)
async def rename(name: str, tags: list[str] | None = None) -> None:
    raise ValueError(name)
"""
    )
    job = shop.ok("enqueue", "rename", "anna").out.strip()
    shop.work()
    assert shop.ok("dlq", "replay", "--set", "name=42", "--set", "tags=null").out == "1 dead job replayed\n"
    assert arguments(shop, job) == [["42", None], {}]


def test_arguments_that_do_not_fit_move_nothing(shop: Shop) -> None:
    ids = shop.kill(3)
    answer = shop.run("dlq", "replay", "--set", "n=many")
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert answer.err.startswith(
        f"fennelq: job {ids[0]} (number 1 of those selected): tasks:charge, parameter 'n'"
    )
    assert answer.err.endswith(". Nothing was replayed\n")
    assert dead(shop) == ids


def test_a_function_of_the_user_makes_new_arguments(fixes: Shop) -> None:
    ids = fixes.kill(3)
    assert fixes.ok("dlq", "replay", "--map", "fixes:add_one").out == "3 dead jobs replayed\n"
    assert [arguments(fixes, job) for job in ids] == [[[1], {}], [[2], {}], [[3], {}]]


def test_a_function_that_raises_on_the_7th_of_20_moves_6_only_if_asked_to(fixes: Shop) -> None:
    ids = fixes.kill(20)
    answer = fixes.run("dlq", "replay", "--map", "fixes:fails_at_seven")
    assert (answer.code, answer.out) == (Exit.FAILED, "")
    assert f"job {ids[6]} (number 7 of those selected): fails_at_seven raised KeyError" in answer.err
    assert answer.err.endswith("Nothing was replayed: add --continue to replay the 6 before it\n")
    assert dead(fixes) == ids
    import fixes as module  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]

    module.calls = 0
    answer = fixes.run("dlq", "replay", "--map", "fixes:fails_at_seven", "--continue")
    assert answer.code == Exit.FAILED
    assert answer.out.startswith("6 dead jobs replayed; 14 still dead, because they got no new arguments")
    assert f"fennelq: stopped: job {ids[6]}" in answer.err
    assert dead(fixes) == ids[6:]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--set", "n"], "is not NAME=VALUE"),
        (["--set", "a b=1"], "is not NAME=VALUE"),
        (["--map", "fixes"], "is not MODULE:FUNCTION"),
        (["--map", "nowhere:f"], "No module named 'nowhere'"),
        (["--map", "fixes:nothing"], "module fixes has no function 'nothing'"),
        (["--set", "n=1", "--map", "fixes:add_one"], "exclude each other"),
        (["--canary", "0"], "greater than or equal to 1"),
        (["--canary", "3", "--canary-timeout", "soon"], "is not a duration"),
    ],
)
def test_a_wrong_option_is_a_usage_error(fixes: Shop, words: list[str], says: str) -> None:
    ids = fixes.kill(1)
    answer = fixes.run("dlq", "replay", *words)
    assert answer.code == Exit.USAGE
    assert says in " ".join(answer.err.split())
    assert dead(fixes) == ids


def strange(shop: Shop) -> str:
    """A dead job of a task that the app does not have any more."""
    job = shop.kill(1)[0]
    tasks = shop.folder / "tasks.py"
    tasks.write_text(tasks.read_text().replace("async def charge", "async def charge_card"))
    import sys

    del sys.modules["tasks"]
    return job


def test_without_the_code_new_arguments_need_anyway(shop: Shop) -> None:
    job = strange(shop)
    answer = shop.run("dlq", "replay", "--set", "n=42")
    assert answer.code == Exit.NOT_FOUND
    assert "unknown task 'tasks:charge'" in answer.err
    answer = shop.ok("dlq", "replay", "--set", "0=42", "--anyway")
    assert answer.out == "1 dead job replayed\n"
    assert answer.err == (
        "1 dead job of tasks that the app does not have: the new arguments are not checked, and the limits and keys of "
        "the old ones stay\n"
    )
    assert arguments(shop, job) == [[42], {}]


# In an editor


@pytest.fixture
def editor(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`editor("n", "42")`: an editor that replaces the first text by the second."""
    script = shop.folder / "edit.sh"
    monkeypatch.delenv("VISUAL", raising=False)

    def edits(old: str, new: str, code: int = 0) -> Path:
        script.write_text(f'cp "$1" {shop.folder}/seen.json\nsed -i "s|{old}|{new}|" "$1"\nexit {code}\n')
        monkeypatch.setenv("EDITOR", f"sh {script}")
        return shop.folder / "seen.json"

    return edits


def test_a_job_is_edited_and_replayed(shop: Shop, editor: Any) -> None:
    first, second = shop.kill(2)
    seen = editor(": 0", ": 42")
    assert shop.ok("dlq", "edit", first).out == f"{first} replayed with other arguments\n"
    assert json.loads(seen.read_text()) == {"n": 0}
    assert arguments(shop, first) == [[42], {}]
    assert dead(shop) == [second]
    answer = shop.run("dlq", "edit", first)
    assert (answer.code, answer.err) == (Exit.NOT_FOUND, f"fennelq: {first} is not dead: it is SENT\n")


def test_an_unchanged_text_leaves_the_job_dead(shop: Shop, editor: Any) -> None:
    [job] = shop.kill(1)
    editor("x", "y")
    answer = shop.ok("dlq", "edit", job)
    assert answer.err == f"nothing was changed: {job} stays dead\n"
    assert dead(shop) == [job]


@pytest.mark.parametrize(
    ("new", "says"),
    [
        ("many", "this is not JSON"),
        ('\\"many\\"', "parameter 'n'"),
        ('1, \\"m\\": 2', "no such parameter"),
    ],
)
def test_a_text_that_does_not_fit_is_kept(shop: Shop, editor: Any, new: str, says: str) -> None:
    [job] = shop.kill(1)
    editor("0", new)
    answer = shop.run("dlq", "edit", job)
    assert answer.code == Exit.USAGE
    assert says in answer.err
    assert dead(shop) == [job]
    kept = Path(answer.err.partition("the text is in ")[2].splitlines()[0])
    assert kept.read_text()
    kept.unlink()


def test_an_editor_that_fails_or_is_missing_is_a_sentence(
    shop: Shop, editor: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only the text of an editor that was open is kept."""
    files = tmp_path / "files"
    files.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(files))
    [job] = shop.kill(1)
    editor("0", "1", 3)
    answer = shop.run("dlq", "edit", job)
    (kept,) = files.iterdir()
    assert (answer.code, answer.err) == (
        Exit.FAILED,
        f"fennelq: the editor ended with code 3: nothing was replayed; the text is in {kept}\n",
    )
    assert json.loads(kept.read_text()) == {"n": 1}
    monkeypatch.setenv("EDITOR", "/nowhere/vi")
    answer = shop.run("dlq", "edit", job)
    assert answer.code == Exit.USAGE
    assert "'/nowhere/vi' cannot be started" in answer.err
    monkeypatch.delenv("EDITOR")
    assert "set EDITOR" in shop.run("dlq", "edit", job).err
    assert list(files.iterdir()) == [kept]
    assert dead(shop) == [job]


def test_a_job_whose_id_is_as_long_as_possible_is_edited(shop: Shop, editor: Any) -> None:
    job = f"{'q' * 128}:{'k' * 128}"
    seen = editor(": 1", ": 42")
    shop.ok("enqueue", "charge", "1", "--queue", "q" * 128, "--job-id", "k" * 128)
    shop.work()
    assert shop.ok("dlq", "edit", job).out == f"{job} replayed with other arguments\n"
    assert json.loads(seen.read_text()) == {"n": 1}


def test_a_folder_for_the_editor_that_is_gone_is_a_sentence(
    shop: Shop, editor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    [job] = shop.kill(1)
    editor("1", "2")
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    answer = shop.run("dlq", "edit", job)
    assert (answer.code, answer.err) == (
        Exit.FAILED,
        "fennelq: the file for the editor cannot be written: No such file or directory. Set TMPDIR to a folder that "
        "has room\n",
    )
    assert dead(shop) == [job]


def test_an_import_that_has_no_room_for_its_lines_imports_none(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines are right, so `--continue` imports none of them either."""
    file = tmp_path / "dead.jsonl"
    shop.kill(2)
    shop.ok("dlq", "export", "-o", str(file))
    shop.ok("dlq", "purge", "--all", "--yes")
    with monkeypatch.context() as full:
        full.setattr("fennelq.manage.dead.spool.IN_MEMORY", 10)
        full.setattr("tempfile.tempdir", "/nowhere")
        for more in ([], ["--continue"]):
            answer = shop.run("dlq", "import", str(file), *more)
            assert answer.code == Exit.FAILED
            assert answer.err.startswith(
                "fennelq: a temporary file cannot be written: No such file or directory. "
            )
    assert dead(shop) == []


def test_secrets_are_hidden_in_the_editor_and_stay_what_they_are(shop: Shop, editor: Any) -> None:
    tasks = shop.folder / "tasks.py"
    tasks.write_text(
        tasks.read_text()
        + """
@app.task(retries=0)
async def login(user: str, password: str, more: dict[str, str]) -> None:
    raise ValueError(user)
"""
    )
    job = shop.ok("enqueue", "login", "anna", "hunter2", '{"api_key": "hunter3", "n": "1"}').out.strip()
    shop.work()
    seen = editor("anna", "bob")
    assert shop.ok("dlq", "edit", job).code == 0
    assert "hunter" not in seen.read_text()
    assert arguments(shop, job) == [["bob", "hunter2", {"api_key": "hunter3", "n": "1"}], {}]
    assert "hunter" not in json.dumps(shop.ok("job", "show", job, "--json").json["history"])


# Files


def exported(shop: Shop, tmp_path: Path, *words: str) -> Path:
    """A file with all dead jobs, which are then removed."""
    file = tmp_path / "dead.jsonl"
    shop.ok("dlq", "export", "--output", str(file), *words)
    shop.ok("dlq", "purge", "--all", "--yes")
    return file


def test_an_export_is_imported_once(shop: Shop, tmp_path: Path) -> None:
    ids = shop.kill(3)
    file = exported(shop, tmp_path)
    assert dead(shop) == []
    assert shop.ok("dlq", "import", str(file), "--dead").out == "3 jobs put back as dead\n"
    again = "0 jobs put back as dead; 3 skipped, because jobs with their ids exist already\n"
    assert shop.ok("dlq", "import", str(file), "--dead").out == again
    assert sorted(dead(shop)) == sorted(ids)


def test_an_import_sends_jobs(shop: Shop, tmp_path: Path) -> None:
    ids = shop.kill(2)
    text = exported(shop, tmp_path).read_text()
    answer = shop.run("dlq", "import", "-", "--json", stdin=text)
    assert (answer.code, answer.json["imported"]) == (0, 2)
    assert [shop.ok("job", "show", job, "--json").json["status"] for job in ids] == ["SENT", "SENT"]


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ("{", Exit.FAILED, "line 2: it is not JSON."),
        ({"v": 2}, Exit.FAILED, "line 2: it is of version 2"),
        ({"app": "other"}, Exit.FAILED, "line 2: it is of app 'other', and this app is 'shop'."),
        ({"id": "mial:1"}, Exit.NOT_FOUND, "line 2: queue 'mial' does not exist: did you mean 'mail'?"),
        (
            {"redacted": True},
            Exit.FAILED,
            "line 2: its secrets are hidden: export it again with --with-secrets.",
        ),
    ],
)
def test_a_bad_line_is_named_and_the_rest_needs_continue(
    shop: Shop, tmp_path: Path, changes: Any, code: Exit, says: str
) -> None:
    shop.kill(3)
    file = exported(shop, tmp_path)
    lines = file.read_text().splitlines()
    lines[1] = changes if isinstance(changes, str) else json.dumps({**json.loads(lines[1]), **changes})
    file.write_text("\n".join(lines))
    answer = shop.run("dlq", "import", str(file), "--dead")
    assert (answer.code, answer.out) == (code, "")
    assert answer.err.startswith(f"fennelq: {says}")
    assert answer.err.endswith("Nothing was imported: add --continue to import the other lines\n")
    assert dead(shop) == []
    answer = shop.run("dlq", "import", str(file), "--dead", "--continue")
    assert answer.code == Exit.FAILED
    assert answer.out == "2 jobs put back as dead; 1 line cannot be imported\n"
    assert answer.err.startswith("fennelq: line 2: ")
    assert len(dead(shop)) == 2


def test_a_file_that_cannot_be_read_is_a_sentence(shop: Shop) -> None:
    answer = shop.run("dlq", "import", "/nowhere/dead.jsonl")
    assert (answer.code, answer.err) == (
        Exit.FAILED,
        "fennelq: /nowhere/dead.jsonl cannot be read: No such file or directory\n",
    )


def test_a_line_that_is_too_long_is_refused_and_the_next_one_is_read(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fennelq.cli import exchange
    from fennelq.manage.dead import importing

    shop.kill(1)
    file = exported(shop, tmp_path)
    for module in (exchange, importing):
        monkeypatch.setattr(module, "LONGEST_LINE", 20_000)
    file.write_text('{"x": "' + "x" * 100_000 + '"}\n' + file.read_text())
    answer = shop.run("dlq", "import", str(file), "--continue")
    assert "line 1: it has more than 20,000 bytes" in answer.err
    assert answer.out == "1 job sent; 1 line cannot be imported\n"


def test_secrets_need_an_option(shop: Shop, tmp_path: Path) -> None:
    tasks = shop.folder / "tasks.py"
    tasks.write_text(
        tasks.read_text()
        + """
@app.task(retries=0)
async def login(user: str, password: str) -> None:
    raise ValueError(user)
"""
    )
    shop.ok("enqueue", "login", "anna", "hunter2")
    shop.work()
    answer = shop.ok("dlq", "export")
    assert "hunter" not in answer.out
    assert answer.err == "1 dead job with hidden secrets cannot be imported: --with-secrets includes them\n"
    file = exported(shop, tmp_path, "--with-secrets")
    assert "hunter2" in file.read_text()
    assert shop.ok("dlq", "import", str(file)).out == "1 job sent\n"


def test_a_hostile_job_cannot_control_the_terminal(shop: Shop, tmp_path: Path) -> None:
    shop.ok("enqueue", "shout")
    shop.work()
    for words in (["replay", "--dry-run"], ["export"]):
        out = shop.ok("dlq", *words).out
        assert "\x1b" not in out
    file = exported(shop, tmp_path)
    line = json.loads(file.read_text())
    for text in ("\x1b[2J", "\u202e", "\x9b2J", "x" * 2_000_000):
        file.write_text(json.dumps({**line, "app": text, "task": text}))
        err = shop.run("dlq", "import", str(file)).err
        assert not {"\x1b", "\u202e", "\x9b"} & set(err)
        assert len(err) < 1000
        file.write_text(json.dumps({**line, "message": text, "error_type": text}))
        assert shop.ok("dlq", "import", str(file), "--dead").code == 0
        with capture_logs(), running_aside(shop.app):
            stopped = shop.run("dlq", "replay", "--canary", "1")
        assert not {"\x1b", "\u202e", "\x9b"} & set(stopped.err + stopped.out)
        assert len(stopped.err) < 1000
        shop.ok("dlq", "purge", "--all", "--yes")
