"""A secret among the arguments and headers of jobs is in no output: of no command, in no export, in no log line."""

from __future__ import annotations

import threading
from pathlib import Path

import orjson
import pytest
from structlog.contextvars import bind_contextvars
from structlog.testing import capture_logs

from fennelq import App
from fennelq.broker.verb import Command
from fennelq.cli.exits import Exit
from tests.cli.shop import Shop
from tests.cli.terminal import Terminal
from tests.cli.test_audit import READING
from tests.cli.test_commands import fennelq
from tests.kit.waiting import eventually
from tests.kit.workers import running_aside

PLANTED = "xyzzy"
"""Is a part of every secret."""
NUMBER = "4929"
"""Is a part of every secret number."""

TASKS = """
from dataclasses import dataclass
from typing import Any
import structlog
from pydantic import BaseModel, SecretStr
from fennelq import App, Limit, Secret

app = App("shop", redact=["salary"], carry=["session_token", "request_id"])

class Model(BaseModel):
    sesame: Secret[str]

@dataclass
class Account:
    name: str
    iban: str
    model: Model

@app.redacting
def hide(task: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {**arguments, "diary": f"{len(arguments.get('diary', ''))} letters"}

class Refused(Exception): ...

@app.task(queue="mail", retries=0, concurrency=Limit(1, name="one"))
async def login(
    user: str, password: str, salary: int, word: SecretStr, account: Account, mark: Secret[str], diary: str = "",
    **more: Any
) -> str:
    if user == "well":
        return word.get_secret_value()[:4]
    raise Refused(f"no {password} {salary} {word.get_secret_value()} {account!r} {mark!r} {diary} {more}")

@app.task(queue="slow", retries=5)
async def again(api_key: str) -> None:
    structlog.get_logger().info("a line of the task")
    raise Refused(f"{api_key} is not valid")

@app.task(queue="slow", retries=0)
async def unknown(*values: Any) -> None: ...
"""

SECRETS = {
    "password": "xyzzy-1",
    "salary": 4929001,
    "word": "xyzzy-2",
    "account": {"name": "ada", "iban": "xyzzy-3", "model": {"sesame": "xyzzy-4"}},
    "mark": "xyzzy'\"5",
    "diary": "xyzzy-6",
    "nested": [{"clientSecret": "xyzzy-7", "card": {"number": 4929002}}],
    "link": "https://ada:xyzzy-8@example.com/",
    "Cookie": "xyzzy-9",
}
"""The arguments of `login` besides `user`."""

LOOKING: dict[str, list[tuple[str, ...]]] = {
    "audit": [()],
    "cron list": [()],
    "cron next": [("@daily",)],
    "cron show": [("nightly",)],
    "dlq list": [("--limit", "0"), ("--group",)],
    "dlq show": [("mail:dead",)],
    "history search": [()],
    "history stats": [()],
    "info": [()],
    "job list": [()],
    "job show": [
        (f"{job}",)
        for job in ("mail:dead", "mail:ready", "mail:line", "mail:later", "slow:retry", "slow:gone")
    ],
    "job wait": [("mail:dead",)],
    "limit list": [()],
    "queue list": [()],
    "op list": [()],
    "op show": [("{operation}",)],
    "top": [("--once",)],
    "queue peek": [("mail",), ("mail", "--scheduled"), ("mail", "--lines"), ("slow", "--retry"), ("slow",)],
}
"""Command → how it is called in `done`. Add each new command that reads."""
AT_WORK: dict[str, tuple[str, ...]] = {
    "profile": ("{executor}", "--seconds", "0.2"),
    "queue running": (),
    "worker list": (),
    "worker show": ("{executor}",),
    "worker stacks": (),
}
"""The same, for commands that show what runs."""


@pytest.fixture
def planted(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A shop with jobs in every state, all of which have secrets, and with a history."""
    (shop.folder / "tasks.py").write_text(TASKS)
    monkeypatch.setenv("FENNELQ_HISTORY_URL", f"sqlite://{shop.folder}/history.db")
    record(shop)
    send(shop, dead=0, well=0, later=3600)
    return shop


def record(shop: Shop) -> None:
    """Record what has ended; its log has no secret either."""
    answer = fennelq("history", "run", "--once", folder=shop.folder)
    assert answer.code == 0, answer
    assert_hidden(answer.out + answer.err)


def send(shop: Shop, **delays: float) -> None:
    """Send jobs with these ids and delays to `mail`, and one to `slow`."""

    async def work(app: App) -> None:
        login, again = app.tasks["tasks:login"], app.tasks["tasks:again"]
        bind_contextvars(session_token=f"{PLANTED}-session", request_id="r-17")
        headers = {"authorization": f"Bearer {PLANTED}", "tenant": "acme"}
        for key, delay in delays.items():
            args, kwargs = login.calls.decode(_call({"user": key, **SECRETS}))
            await login.options(job_id=key, headers=headers, delay=delay).delay(*args, **kwargs)
        await again.options(job_id="retry", headers=headers).delay(f"{PLANTED}-key")

    shop.do(work)


def _call(kwargs: object) -> bytes:
    return orjson.dumps([[], kwargs])


def work(shop: Shop, *words: str) -> str:
    """What a worker logs until no job is left."""
    answer = fennelq("worker", "--burst", "-p", "1", "--log-level", "debug", *words, folder=shop.folder)
    assert answer.code == 0, answer
    return answer.out + answer.err


@pytest.fixture
def done(planted: Shop) -> Shop:
    """`planted`, after a worker has run its jobs, and with a schedule and a job without code."""
    work(planted)
    record(planted)
    words = ("--kwargs", f'{{"user":"ada","password":"{PLANTED}"}}', "--args", f'["{PLANTED}"]')
    send(planted, ready=0, line=0)
    planted.ok("cron", "add", "unknown", "--every", "1h", "--name", "nightly", "--args", "[1]")
    planted.ok("cron", "add", "gone.tasks:gone", "--anyway", "--every", "1h", "--name", "other", *words)
    planted.ok("enqueue", "gone:gone", PLANTED, "--anyway", "-q", "slow", "--job-id", "gone")
    planted.run("job", "cancel", "mail:nosuch", "--reason", "no reason")
    planted.run(
        "job", "cancel", "--where", f"header:authorization='{PLANTED} -task:login'", "--limit", "1", "--yes"
    )
    return planted


async def begin(app: App) -> str:
    """The id of an operation with a secret filter."""
    plan = await app.operations.plan("cancel", f"header:authorization={PLANTED} queue:mail")
    return (await app.operations.begin(plan)).id


def assert_hidden(text: str) -> None:
    assert PLANTED not in text
    assert NUMBER not in text


@pytest.mark.parametrize("fmt", ["console", "json"])
def test_the_log_of_a_worker_has_no_secret(planted: Shop, fmt: str) -> None:
    log = work(planted, "--log-format", fmt)
    assert "Refused" in log
    assert "r-17" in log
    assert "session_token=[redacted]" in log or '"session_token": "[redacted]"' in log
    assert_hidden(log)


def test_no_output_of_a_command_has_a_secret(done: Shop) -> None:
    assert {*LOOKING, *AT_WORK} == READING
    operation = done.do(begin)
    for command, calls in LOOKING.items():
        for words in calls:
            for json in ((), ("--json",)):
                given = (word.format(operation=operation) for word in words)
                answer = done.run(*command.split(), *given, *json)
                assert answer.code in (Exit.OK, Exit.FAILED), answer
                assert_hidden(answer.out + answer.err)
                assert answer.out not in ("", "[]\n") or command == "job wait", (command, words)
    for words in (
        ("job", "show", "mail:dead"),
        ("queue", "peek", "mail", "--scheduled"),
        ("cron", "show", "other"),
        ("job", "list"),
        ("job", "cancel", "--where", "state:scheduled", "--dry-run"),
    ):
        assert_hidden("\n".join(Terminal(*words, folder=done.folder, columns=400).lines()))


def test_the_database_of_the_history_has_no_secret(done: Shop) -> None:
    assert {job["id"] for job in done.ok("history", "search", "--json").json} == {"mail:dead", "mail:well"}
    (well,) = done.ok("history", "search", "state:success", "--json").json
    assert well["arguments"][1]["user"] == "well"
    for file in done.folder.glob("history.db*"):
        assert_hidden(file.read_bytes().decode("latin-1"))


def test_no_command_shows_a_secret_of_a_job_that_runs(shop: Shop) -> None:
    held, release = threading.Event(), threading.Event()

    @shop.app.task(name="shop:hold")
    def hold(password: str) -> None:
        held.set()
        release.wait(60)

    with capture_logs(), running_aside(shop.app) as executor:
        eventually(lambda: executor.state.listening and executor.state.connected)
        try:
            shop.ok("enqueue", "shop:hold", PLANTED)
            assert held.wait(30)
            for command, words in AT_WORK.items():
                for json in ((), ("--json",)):
                    given = (word.format(executor=executor.name) for word in words)
                    answer = shop.ok(*command.split(), *given, *json)
                    assert answer.out not in ("", "[]\n")
                    assert_hidden(answer.out + answer.err)
        finally:
            release.set()


def test_the_way_back_of_a_job_shows_no_secret(done: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = done.folder / "seen.json"
    monkeypatch.delenv("VISUAL", raising=False)
    editor = done.folder / "edit.sh"
    editor.write_text(f'cp "$1" {seen}\nsed -i "s/\\"dead\\"/\\"well\\"/" "$1"\n')
    monkeypatch.setenv("EDITOR", f"sh {editor}")
    for words in (
        ("dlq", "replay", "--dry-run", "--json"),
        ("dlq", "replay", "--dry-run", "--set", f"password={PLANTED}", "--set", f"mark={PLANTED}"),
        ("dlq", "replay", "--dry-run", "--set", f"password={PLANTED}", "--json"),
        ("job", "cancel", "--where", "state:scheduled", "--dry-run", "--json"),
        ("dlq", "edit", "mail:dead"),
        ("job", "show", "mail:dead", "--json"),
        ("audit", "--json"),
    ):
        answer = done.ok(*words)
        assert_hidden(answer.out + answer.err)
    assert_hidden(seen.read_text())
    entry = done.ok("audit", "-n", "1", "--json").json[0]
    assert (entry["what"], entry["done"]) == ("dlq edit", 1)
    assert '"user":"dead"' in entry["before"]
    assert '"user":"well"' in entry["after"]
    assert "[redacted]" in entry["before"]

    async def arguments(app: App) -> bytes:
        info = await app.client.info("mail:dead")
        assert info is not None
        return info.arguments

    names = ("password", "salary", "word", "account", "mark", "diary")
    further = {name: value for name, value in SECRETS.items() if name not in names}
    assert orjson.loads(done.do(arguments)) == [["well", *map(SECRETS.get, names)], further]


def test_new_arguments_in_the_record_of_operations_are_no_secrets(done: Shop) -> None:
    done.ok("dlq", "replay", "--queue", "mail", "--set", f"password={PLANTED}", "--set", f"mark={PLANTED}")
    entry = done.ok("audit", "-n", "1", "--json").json[0]
    assert entry["what"] == "dlq replay"
    assert "--set 'password=[redacted]' --set 'mark=[redacted]'" in entry["filter"]


def test_a_secret_in_a_filter_of_dead_jobs_is_in_no_record_and_no_output(done: Shop) -> None:
    where = f"header:'authorization=Bearer {PLANTED}' queue:mail".replace("'", '"')
    answer = done.ok("dlq", "purge", "--where", where, "--yes")
    assert answer.out == "1 dead job removed\n"
    wrong = done.run("dlq", "list", "--where", f"{where} taks:x")
    entry = done.ok("audit", "-n", "1", "--json").json[0]
    assert (entry["what"], entry["done"]) == ("dlq purge", 1)
    assert "authorization=[redacted]" in entry["filter"]
    assert_hidden(answer.err + wrong.err + wrong.out + str(entry))


def test_an_export_of_jobs_has_no_secret_unless_it_is_asked_for(done: Shop) -> None:
    answer = done.ok("job", "export")
    assert_hidden(answer.out)
    assert '"redacted":true' in answer.out
    whole = done.ok("job", "export", "--where", "mail:dead", "--with-secrets").json
    assert whole["redacted"] is False
    assert whole["arguments"] == [[], {"user": "dead", **SECRETS}]
    entry = done.ok("audit", "-n", "1", "--json").json[0]
    assert (entry["what"], entry["filter"]) == ("job export", "--where mail:dead --with-secrets")


def test_what_is_no_secret_is_shown(done: Shop) -> None:
    shown = done.ok("job", "show", "mail:dead", "--json").json
    kwargs = shown["arguments"][1]
    assert kwargs["user"] == "dead"
    assert kwargs["password"] == kwargs["salary"] == kwargs["word"] == kwargs["mark"] == "[redacted]"
    assert kwargs["account"] == {"name": "ada", "iban": "[redacted]", "model": {"sesame": "[redacted]"}}
    assert kwargs["nested"] == [{"clientSecret": "[redacted]", "card": "[redacted]"}]
    assert kwargs["link"] == "https://ada:***@example.com/"
    assert kwargs["diary"] == "7 letters"
    assert shown["headers"] == {
        "authorization": "[redacted]",
        "tenant": "acme",
        "ctx.session_token": "[redacted]",
        "ctx.request_id": "r-17",
    }
    assert shown["error"]["message"].startswith(
        "no [redacted] [redacted] [redacted] Account(name='ada', iban='[red"
    )


def test_an_export_has_no_secret_unless_it_is_asked_for(done: Shop, tmp_path: Path) -> None:
    for words in ((), ("--json",)):
        answer = done.ok("dlq", "export", *words)
        assert_hidden(answer.out)
        assert answer.json["redacted"] is True
    to = tmp_path / "dead.jsonl"
    done.ok("dlq", "export", "-o", str(to))
    assert_hidden(to.read_text())
    whole = done.ok("dlq", "export", "--with-secrets").json
    assert whole["redacted"] is False
    assert whole["arguments"] == [[], {"user": "dead", **SECRETS}]
    assert whole["headers"]["authorization"] == f"Bearer {PLANTED}"
    entry = done.ok("audit", "-n", "1", "--json").json[0]
    assert (entry["what"], entry["filter"], entry["done"]) == ("dlq export", "--with-secrets", 1)


def test_the_tables_and_the_history_in_redis_have_no_secret(done: Shop) -> None:
    """Only the record itself has the arguments and the headers: workers need them."""

    async def read(app: App) -> list[str]:
        commands = [Command(["XRANGE", "fq:{shop/mail}:dlq", "-", "+"], str)]
        commands += [Command(["LRANGE", "fq:{shop/slow}:hist:retry", 0, -1], str)]
        commands += [Command(["HGET", "fq:{shop/mail}:j:dead", "x"], str)]
        commands += [Command(["LRANGE", "fq:{shop/mail}:r:dead", 0, -1], str)]
        commands += [Command(["XRANGE", "fq:{shop}:audit", "-", "+"], str)]
        return [await app.client.ask(one) for one in commands]

    found = done.do(read)
    assert "Refused" in "".join(found)
    assert_hidden("".join(found))


def test_a_job_that_a_worker_runs_has_its_secrets(shop: Shop) -> None:
    (shop.folder / "tasks.py").write_text(TASKS)
    job = shop.ok("enqueue", "login", "-k", '{"user":"well"}', "-k", str_of(SECRETS)).out.strip()
    shop.work()
    assert shop.ok("job", "wait", job).out == '"xyzz"\n'


def str_of(kwargs: object) -> str:
    return _call(kwargs).decode()[4:-1]
