"""Secrets: which values fennelq shows to the task only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import pytest
from pydantic import BaseModel, SecretStr, field_serializer
from structlog.testing import capture_logs

from fennelq import App, ConfigurationError, InvalidArguments, Secret, TaskFailed
from fennelq.model.codec import CallCodec
from fennelq.redaction import UNKNOWN, WITH_SECRETS, unhidden
from fennelq.testing import Testing
from tests.kit.apps import LocalApp

HIDDEN = "[redacted]"


@dataclass
class Login:
    user: str
    sesame: Secret[str]


class Starred(BaseModel):
    word: SecretStr


class Written(BaseModel):
    word: SecretStr

    @field_serializer("word", when_used="json")
    def _open(self, word: SecretStr) -> str:
        return word.get_secret_value()


def declare(app: App) -> None:
    @app.task(name="m:t")
    async def task(
        user: str, password: str, *values: str, login: Login | None = None, **more: Any
    ) -> None: ...


SENT: list[tuple[bytes, Any]] = [
    (b'[["ada","x"],{}]', [["ada", HIDDEN], {}]),
    (b'[["ada"],{"password":"x"}]', [["ada"], {"password": HIDDEN}]),
    (b'[["ada","x","a","b"],{}]', [["ada", HIDDEN, "a", "b"], {}]),
    (b'[[],{"login":{"user":"ada","sesame":"x"}}]', [[], {"login": {"user": "ada", "sesame": HIDDEN}}]),
    (b'[[],{"sesame":"x"}]', [[], {"sesame": HIDDEN}]),
    (b'[[],{"body":[{"apiKey":"x","n":1}]}]', [[], {"body": [{"apiKey": HIDDEN, "n": 1}]}]),
    (b'[[],{"tokens":{"a":"x"},"max_tokens":5}]', [[], {"tokens": HIDDEN, "max_tokens": 5}]),
    (b'[[],{"token":null,"secret":false}]', [[], {"token": None, "secret": False}]),
    (b'[[],{"link":"redis://:x@host"}]', [[], {"link": "redis://:***@host"}]),
    (b"[[1180591620717411303424],{}]", [[2**70], {}]),
    (b"", None),
    (b"not JSON", HIDDEN),
    (b'{"password":"x"}', HIDDEN),
    (b"[" * 100_000, HIDDEN),
]


@pytest.mark.parametrize(("sent", "shown"), SENT, ids=lambda value: str(value)[:40])
def test_arguments_are_shown_without_secrets(sent: bytes, shown: object) -> None:
    app = LocalApp("shop")
    declare(app)
    assert app.redaction.call("m:t", sent) == shown


def test_without_the_code_of_a_task_texts_without_a_name_are_hidden() -> None:
    sent = b'[["hunter2",42,{"user":"ada","pwd":"x"},["deep"]],{"name":"ada"}]'
    assert UNKNOWN.call("m:t", sent) == [
        [HIDDEN, 42, {"user": "ada", "pwd": HIDDEN}, [HIDDEN]],
        {"name": "ada"},
    ]
    assert WITH_SECRETS.call("m:t", sent)[0][0] == "hunter2"


def test_an_argument_that_the_task_here_does_not_have_is_hidden() -> None:
    app = LocalApp("shop")

    @app.task(name="m:t")
    async def task(user: str) -> None: ...

    assert app.redaction.call("m:t", b'[["ada","of a later version"],{}]') == [["ada", HIDDEN], {}]


def test_headers_are_shown_without_secrets() -> None:
    app = LocalApp("shop")
    headers = {"Authorization": "Bearer x", "x-api-key": "x", "tenant": "acme"}
    assert app.redaction.headers(headers) == {"Authorization": HIDDEN, "x-api-key": HIDDEN, "tenant": "acme"}


def test_names_of_your_own_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    app = LocalApp("shop", redact=["salary", "staffNumber"])
    assert app.redaction.fact("base_salary", 1) == app.redaction.fact("staff_number", "x") == HIDDEN
    assert app.redaction.fact("number", "x") == "x"
    monkeypatch.setenv("FENNELQ_REDACT", "salary, diary")
    assert LocalApp("shop").settings.redact == ["salary", "diary"]
    with pytest.raises(ConfigurationError, match="setting redact: name '12' is not valid"):
        LocalApp("shop", redact=["12"])


def test_a_function_of_your_own_decides_what_is_shown() -> None:
    app = LocalApp("shop")
    declare(app)
    seen: list[tuple[str, Mapping[str, Any]]] = []

    @app.redacting
    def hide(task: str, arguments: dict[str, Any]) -> dict[str, Any]:
        seen.append((task, dict(arguments)))
        arguments.pop("gone", None)
        return {**arguments, "user": arguments["user"][0], "values": ["…"] * len(arguments["values"])}

    sent = b'[["ada","x","v","w"],{"gone":1,"n":2}]'
    assert app.redaction.call("m:t", sent) == [["a", HIDDEN, "…", "…"], {"gone": HIDDEN, "n": 2}]
    assert seen == [("m:t", {"user": "ada", "password": "x", "values": ["v", "w"], "gone": 1, "n": 2})]


def _raises(task: str, arguments: dict[str, Any]) -> dict[str, Any]:
    raise ValueError(task)


def _nothing(task: str, arguments: dict[str, Any]) -> Any:
    return None


@pytest.mark.parametrize("hide", [_raises, _nothing])
def test_a_function_that_fails_hides_everything(hide: Any) -> None:
    app = LocalApp("shop")
    declare(app)
    app.redacting(hide)
    with capture_logs() as logs:
        for _ in range(3):
            assert app.redaction.call("m:t", b'[["ada"],{"n":2}]') == [[HIDDEN], {"n": HIDDEN}]
    assert [line["event"] for line in logs] == ["redacting_failed"]


def test_a_function_that_is_none_is_refused() -> None:
    app = LocalApp("shop")
    with pytest.raises(ConfigurationError, match=r"app\.redacting takes a function"):
        app.redacting(cast("Any", "password"))


async def test_the_message_of_an_error_does_not_quote_a_secret(t: Testing, app: App) -> None:
    @app.task(name="m:t", retries=0, headers={"tenant": "acme"})
    async def task(password: str, n: int, note: str) -> None:
        raise ValueError(f"{password!r} {note} {n} {password}")

    result = await task.options(headers={"authorization": "Bearer x1y2"}).delay("hun'ter2", 5, "Bearer x1y2")
    await t.run_until_idle()
    with pytest.raises(TaskFailed) as failed:
        await result.get(timeout=30)
    assert '"[redacted]" [redacted] 5 [redacted]' in str(failed.value)
    letter = await app.dlq.get(result.id)
    assert letter is not None
    assert letter.info is not None
    assert "hun" not in letter.traceback + letter.message
    assert b"hun'ter2" in letter.info.arguments
    assert "hun'ter2" not in repr(letter.info)


async def test_a_short_secret_does_not_destroy_every_message(t: Testing, app: App) -> None:
    @app.task(name="m:t", retries=0)
    async def task(token: str) -> None:
        raise ValueError("a banana")

    result = await task.delay("a")
    await t.run_until_idle()
    letter = await app.dlq.get(result.id)
    assert letter is not None
    assert letter.message == "a banana"


async def test_secret_types_of_pydantic_arrive_as_they_were_sent(t: Testing, app: App) -> None:
    got: list[str] = []

    @app.task(name="m:t")
    async def task(word: SecretStr, more: list[SecretStr], model: Written) -> None:
        got.extend(one.get_secret_value() for one in (word, *more, model.word))

    await task.delay(SecretStr("one"), [SecretStr("two")], Written(word=SecretStr("three")))
    await t.run_until_idle()
    assert got == ["one", "two", "three"]


def test_a_secret_that_would_arrive_as_stars_is_refused() -> None:
    async def task(model: Starred, models: dict[str, list[Starred]]) -> None: ...

    codec = CallCodec("t", task)
    with pytest.raises(InvalidArguments, match=r"SecretStr as stars.*Secret\[str\]") as refused:
        codec.encode((Starred(word=SecretStr("x")), {}), {})
    assert refused.value.parameter == "model"
    with pytest.raises(InvalidArguments, match="as stars"):
        codec.encode((), {"model": {"word": "**********"}, "models": {"a": [Starred(word=SecretStr("x"))]}})


def test_arguments_by_name_are_shown_as_a_call_is() -> None:
    app = LocalApp("shop")
    declare(app)
    named = {"user": "ada", "login": {"user": "ada", "sesame": "x"}, "pin": 7, "0": "x", "1": 2, "note": None}
    assert app.redaction.named("m:t", named) == {
        **named,
        "login": {"user": "ada", "sesame": HIDDEN},
        "pin": HIDDEN,
        "0": HIDDEN,
    }

    @app.redacting
    def hide(task: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return {name: one for name, one in arguments.items() if name != "user"}

    assert app.redaction.named("m:t", named)["user"] == HIDDEN


def test_an_argument_of_some_task_is_hidden_if_it_is_secret_in_one() -> None:
    app = LocalApp("shop", redact=["salary"])

    @app.task(name="m:other")
    async def other(word: Secret[str], n: int) -> None: ...

    hidden = {name: app.redaction.argument(name, "x") for name in ("word", "salary", "token", "0", "n")}
    assert hidden == {"word": HIDDEN, "salary": HIDDEN, "token": HIDDEN, "0": HIDDEN, "n": "x"}


@pytest.mark.parametrize(
    ("filter", "shown"),
    [
        ("state:dead  task:welcome since:2h", "state:dead  task:welcome since:2h"),
        ("header:authorization=x task:t", 'header:"authorization=[redacted]" task:t'),
        ('header:"x-api-key=a b" -header:tenant=acme', None),
        ("header:x", HIDDEN),
        ("", ""),
    ],
)
def test_a_filter_is_shown_without_secret_headers(filter: str, shown: str | None) -> None:
    found = LocalApp("shop").redaction.filter(filter)
    assert found == shown or (shown is None and "a b" not in found and "tenant=acme" in found)


ORIGINAL = {"user": "anna", "password": "x", "more": [{"api_key": "y", "n": 1}, 2], "link": "http://a:b@c/"}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"user": "bob"},
        {"password": "new"},
        {"more": [{"api_key": "z", "n": 1}, 3]},
        {"more": []},
        {"added": [1]},
        {"link": "http://d/"},
    ],
)
def test_what_a_person_leaves_as_it_is_shown_stays_as_it_is(change: dict[str, Any]) -> None:
    shown = UNKNOWN.named("m:t", ORIGINAL)
    assert "x" not in str(shown)
    assert unhidden({**shown, **change}, shown, ORIGINAL) == {**ORIGINAL, **change}
    left = {name: one for name, one in shown.items() if name != "password"}
    assert unhidden(left, shown, ORIGINAL) == {name: ORIGINAL[name] for name in left}


@pytest.mark.parametrize(
    "change", [{"copy": HIDDEN}, {"more": [{"api_key": HIDDEN}]}, {"more": [{"n": 1, "key": HIDDEN}, 2]}]
)
def test_a_hidden_value_in_another_place_is_refused(change: dict[str, Any]) -> None:
    shown = UNKNOWN.named("m:t", ORIGINAL)
    with pytest.raises(ValueError, match="write the value itself"):
        unhidden({**shown, **change}, shown, ORIGINAL)
