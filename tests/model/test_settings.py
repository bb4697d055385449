"""Settings come from four places, and the error of a mistake in any of them names it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pprint import pformat
from typing import Any, cast, get_type_hints

import pytest
from pydantic import ValidationError

from fennelq import App
from fennelq.errors import ConfigurationError
from fennelq.settings.settings import SettingArgs, Settings
from fennelq.settings.sources import PREFIX

# By name: to basedpyright `docs` is a folder of tests.
generate: Any = import_module("docs.generate")

Write = Callable[[str], Path]


@pytest.fixture
def pyproject(tmp_path: Path) -> Write:
    """`pyproject("result_ttl = 5")`: the folder of a project with these lines in [tool.fennelq]."""

    def write(lines: str) -> Path:
        (tmp_path / "pyproject.toml").write_text(f"[tool.other]\nx = 1\n[tool.fennelq]\n{lines}\n", "utf-8")
        return tmp_path

    return write


def refusal(root: Path | None = None, **given: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Settings.load(root, **given)
    return str(caught.value)


# Where they come from


def test_without_a_word_they_are_the_defaults(tmp_path: Path) -> None:
    settings = Settings.load(tmp_path)
    assert settings == Settings.load(None)
    assert (settings.redis_url, settings.namespace, settings.default_queue) == (None, None, "default")
    assert (settings.default_retries, settings.result_ttl, settings.concurrency) == (3, 3600, 32)


def test_a_later_source_counts_more_than_an_earlier_one(
    pyproject: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = pyproject("result_ttl = 1\nfailure_ttl = 1\nlease = 1")
    monkeypatch.setenv("FENNELQ_RESULT_TTL", "2")
    monkeypatch.setenv("FENNELQ_FAILURE_TTL", "2")
    settings = Settings.load(root, result_ttl=3)
    assert settings.result_ttl == 3
    assert settings.failure_ttl == 2
    assert settings.lease == 1
    assert settings.record_ttl == 86400


def test_an_argument_may_override_the_project_with_none(pyproject: Write) -> None:
    assert Settings.load(pyproject('redis_url = "redis://elsewhere"'), redis_url=None).redis_url is None


def test_every_setting_can_be_set_in_every_place(pyproject: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {
        name: {
            "redis_url": "redis://h",
            "history_url": "sqlite:///var/h.db",
            "namespace": "n",
            "default_queue": "q",
            "log_format": "json",
            "log_level": "debug",
            "log_errors": "message",
            "log_config": "none",
            "metrics": True,
            "metrics_by": "queue",
            "heartbeat_interval": 2,
            "enqueue_timeout": 3,
            "max_stuck": 6,
            "metrics_ttl": 7000,
            "carry": ["request_id", "user"],
            "redact": ["salary", "diary"],
        }.get(name, 7)
        for name in Settings.model_fields
    }
    expected = Settings.load(None, **given).model_dump()
    assert expected == given
    root = pyproject("\n".join(f"{name} = {json.dumps(value)}" for name, value in given.items()))
    assert Settings.load(root).model_dump() == expected
    for name, value in given.items():
        text = ", ".join(map(str, cast("list[object]", value))) if isinstance(value, list) else str(value)
        monkeypatch.setenv(f"{PREFIX}{name.upper()}", text)
    assert Settings.load(None).model_dump() == expected


def test_a_variable_may_be_written_in_lower_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("fennelq_lease", "7")
    monkeypatch.setenv("fennelq_app", "shop.tasks:app")
    assert Settings.load(None).lease == 7
    monkeypatch.setenv("Fennelq_Leese", "7")
    assert refusal() == "the environment (FENNELQ_…): unknown setting 'leese': did you mean 'lease'?"


def test_so_many_stuck_slots_that_an_executor_would_never_be_replaced_are_refused() -> None:
    assert Settings.load(None, concurrency=4, max_stuck=3).max_stuck == 3
    with pytest.raises(ConfigurationError, match=r"max_stuck: 4 is not below concurrency, 4.*at most 3"):
        Settings.load(None, concurrency=4, max_stuck=4)


@pytest.mark.parametrize("seconds", [0, 1200, 86400])
def test_times_are_kept_for_as_long_as_they_are_added_up_or_not_at_all(seconds: int) -> None:
    assert Settings.load(None, metrics_ttl=seconds).metrics_ttl == seconds
    with pytest.raises(ConfigurationError, match=r"metrics_ttl: 1199 s is shorter.* 1200 s.*0 to write none"):
        Settings.load(None, metrics_ttl=1199)


def test_options_of_the_command_line_are_not_settings(
    pyproject: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENNELQ_APP", "shop.tasks:app")
    assert Settings.load(pyproject('app = "shop.tasks:app"')) == Settings.load(None)


def test_a_project_without_our_table_or_without_a_file_changes_no_setting(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n", "utf-8")
    assert Settings.load(tmp_path) == Settings.load(tmp_path / "nowhere")


def test_an_app_takes_them_as_keyword_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENNELQ_LEASE", "5")
    app = App("shop", redis_url="redis://127.0.0.1:1", result_ttl=9)
    assert (app.settings.lease, app.settings.result_ttl, app.namespace) == (5, 9, "shop")
    assert App("shop", namespace="other").namespace == "other"


# Mistakes


def test_a_misspelt_name_is_refused_wherever_it_is_and_the_right_one_suggested(
    pyproject: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    suggested = "unknown setting 'resut_ttl': did you mean 'result_ttl'?"
    assert refusal(resut_ttl=1) == f"App(…): {suggested}"
    assert refusal(pyproject("resut_ttl = 1")) == f"[tool.fennelq] in pyproject.toml: {suggested}"
    monkeypatch.setenv("FENNELQ_RESUT_TTL", "1")
    assert refusal() == f"the environment (FENNELQ_…): {suggested}"


def test_a_name_like_no_other_is_refused_with_those_there_are() -> None:
    assert re.search(r"unknown setting 'zzz'; known: \w+, \w+", refusal(zzz=1))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("result_ttl", "soon"),
        ("result_ttl", -1),
        ("result_ttl", math.nan),
        ("result_ttl", math.inf),
        ("default_retries", 1.5),
        ("default_retries", -1),
        ("lease", 0),
        ("lease", None),
        ("concurrency", 0),
        ("processes", 0),
        ("enqueue_timeout", 0),
        ("max_payload_bytes", 0),
        ("log_level", "loud"),
        ("log_format", "xml"),
        ("log_errors", "all"),
        ("log_config", "mine"),
        ("namespace", "a b"),
        ("default_queue", "{mail}"),
        ("redis_url", 5),
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_setting(name: str, value: Any) -> None:
    text = refusal(**{name: value})
    assert text.startswith(f"setting {name}")
    assert repr(value) in text


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("redis_url", "localhost:6379", "redis_url 'localhost:6379' is not understood"),
        ("namespace", "my shop", "setting namespace: name 'my shop' is not valid"),
        ("lease", "soon", "setting lease: Input should be a valid number"),
    ],
)
def test_a_value_that_is_refused_is_named_with_the_place_it_comes_from(
    pyproject: Write, monkeypatch: pytest.MonkeyPatch, name: str, value: str, sentence: str
) -> None:
    settings: dict[str, Any] = {name: value}
    given = refusal(**settings)
    assert given.startswith(sentence)
    assert "(from" not in given
    assert refusal(pyproject(f'{name} = "{value}"')) == f"{given} (from [tool.fennelq] in pyproject.toml)"
    monkeypatch.setenv(f"FENNELQ_{name.upper()}", value)
    assert refusal(pyproject(f'{name} = "{value}"')) == f"{given} (from FENNELQ_{name.upper()})"


def test_a_bad_value_of_the_environment_or_the_project_is_refused_in_the_same_way(
    pyproject: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refusal(pyproject("lease = 0")).startswith(
        "setting lease: Input should be greater than or equal to 1"
    )
    monkeypatch.setenv("FENNELQ_LEASE", "soon")
    assert refusal().startswith("setting lease: Input should be a valid number")


# Values that are fine alone


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"lease": 1, "heartbeat_interval": 0.5}, ["heartbeat_interval", "0.5 s", "lease, 1 s", "0.333 s"]),
        ({"lease": 3, "heartbeat_interval": 1.01}, ["heartbeat_interval", "1.01 s", "lease, 3 s", "1 s"]),
        ({"heartbeat_interval": 7.5}, ["heartbeat_interval", "7.5 s", "lease, 15 s", "5 s"]),
        ({"lease": 2, "maintenance_interval": 3}, ["maintenance_interval", "3 s", "lease, 2 s"]),
    ],
)
def test_settings_that_would_disable_a_mechanism_together_are_refused_by_name(
    given: dict[str, Any], named: list[str]
) -> None:
    text = refusal(**given)
    assert text.startswith(f"setting {named[0]}: ")
    for words in named[1:]:
        assert words in text
    assert re.search(r": (lower|raise) \w+ or (lower|raise) \w+$", text)


def test_the_largest_value_that_a_refusal_names_is_accepted() -> None:
    for lease in (1, 2, 7, 15, 100.1):
        text = refusal(lease=lease, heartbeat_interval=lease / 2)
        most = re.search(r"at most a third of lease, ([\d.]+) s", text)
        assert most is not None
        assert Settings.load(None, lease=lease, heartbeat_interval=float(most[1])).beat >= lease / 3 - 0.001
    assert Settings.load(None, lease=2, maintenance_interval=2).maintenance == 2


def test_settings_that_disable_a_mechanism_are_refused_from_every_source(
    pyproject: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = refusal(lease=2, heartbeat_interval=1)
    assert refusal(pyproject("lease = 2\nheartbeat_interval = 1")) == expected
    monkeypatch.setenv("FENNELQ_HEARTBEAT_INTERVAL", "1")
    assert refusal(pyproject("lease = 2")) == expected
    assert refusal(lease=2) == expected
    with pytest.raises(
        ConfigurationError, match="setting heartbeat_interval: 1 s is too long for lease, 2 s"
    ):
        App("shop", lease=2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stall_timeout", 0.2),  # the watchdog looks every quarter of a second: every loop would look stalled
        ("schedule_interval", 61),  # due jobs would wait that long for a message that was lost
        ("heartbeat_interval", 901),  # executors are forgotten after an hour of silence
        ("max_payload_bytes", 1 << 25),  # the server disconnects who is owed so much
        ("lease", 1e300),  # not a number that Redis takes
        ("result_ttl", 1e18),
        ("record_ttl", 1e18),
        ("unknown_task_patience", 1e18),
        ("grace_period", 1e18),
    ],
)
def test_a_value_that_would_disable_a_mechanism_by_itself_is_refused(name: str, value: float) -> None:
    given: dict[str, Any] = {"lease": 86_400, name: value}
    text = refusal(**given)
    assert text.startswith(f"setting {name}: Input should be ")
    assert repr(value) in text


@pytest.mark.parametrize("lease", [1, 2, 15, 20_000, 86_400])
def test_with_any_lease_the_default_intervals_work(lease: float) -> None:
    settings = Settings.load(None, lease=lease)
    assert settings.beat <= lease / 4
    assert settings.beat <= 900
    assert settings.maintenance == lease / 4


@pytest.mark.parametrize("text", ["[tool.fennelq", "\xff", "[tool]\nfennelq = 5\n", "tool = 5\n"])
def test_a_project_file_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_bytes(text.encode("latin-1"))
    assert str(tmp_path / "pyproject.toml") in refusal(tmp_path)


# What is not a mistake

OF_KUBERNETES = {
    "SERVICE_HOST": "10.0.0.1",
    "SERVICE_PORT": "80",
    "SERVICE_PORT_HTTP": "80",
    "SERVICE_PORT_MY_METRICS": "9090",
    "PORT": "tcp://10.0.0.1:80",
    "PORT_80_TCP": "tcp://10.0.0.1:80",
    "PORT_80_TCP_PROTO": "tcp",
    "PORT_80_TCP_PORT": "80",
    "PORT_80_TCP_ADDR": "10.0.0.1",
    "PORT_53_UDP": "udp://[fd00::1]:53",
    "PORT_53_UDP_ADDR": "fd00::1",
}


@pytest.mark.parametrize("service", ["FENNELQ_", "FENNELQ_WEB_", "FENNELQ_MAIL_WORKER_2_", "FENNELQ_LEASE_"])
@pytest.mark.parametrize("name", OF_KUBERNETES)
def test_the_variables_of_kubernetes_for_a_service_with_our_name_are_not_settings(
    monkeypatch: pytest.MonkeyPatch, service: str, name: str
) -> None:
    without = Settings.load(None)
    monkeypatch.setenv(f"{service}{name}", OF_KUBERNETES[name])
    assert Settings.load(None) == without
    assert App("shop").settings == without


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HEALTH_PORT", "8081"),
        ("PORT", "6379"),
        ("SERVICE_PORT", "http"),
        ("SERVICE_HOST", ""),
        ("SERVICE", "10.0.0.1"),
        ("WEB_PORT_80_TCP_TTL", "80"),
        ("WEB_PORT_80", "tcp://10.0.0.1:80"),
        ("SERVICE_HOST_TTL", "10.0.0.1"),
    ],
)
def test_what_only_resembles_it_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"FENNELQ_{name}", value)
    assert refusal().startswith(f"the environment (FENNELQ_…): unknown setting '{name.lower()}'")


def test_no_setting_has_a_name_that_kubernetes_could_give_a_value() -> None:
    """A service could be named so that its variables set it."""
    shapes = re.compile(r"(.*_)?(service_host|service_port(_.*)?|port|port_\d+_(tcp|udp|sctp)(_.*)?)")
    assert not [name for name in Settings.model_fields if shapes.fullmatch(name)]


# Passwords

SECRET_URL = "redis://anna:s3cret@redis.example:6380/1"


@pytest.mark.parametrize("show", [repr, str, "{}".format, pformat])
def test_a_password_is_not_shown_with_the_settings(show: Callable[[object], str]) -> None:
    settings = Settings.load(None, redis_url=SECRET_URL, lease=7)
    text = show(settings)
    assert "redis_url='redis://anna:***@redis.example:6380/1'" in text
    assert "lease=7" in text
    assert "s3cret" not in text
    assert settings.redis_url == SECRET_URL


@pytest.mark.parametrize("name", Settings.model_fields)
@pytest.mark.parametrize(
    "value", [SECRET_URL.encode() + b"\xff", [SECRET_URL], {"url": SECRET_URL}, {"redis_url": SECRET_URL}]
)
def test_a_password_is_not_shown_with_a_bad_value(name: str, value: Any) -> None:
    text = refusal(**{name: value})
    assert text.startswith(f"setting {name}")
    assert "s3cret" not in text
    assert "***" in text


@pytest.mark.parametrize("name", [name for name in Settings.model_fields if not name.endswith("_url")])
def test_a_url_in_the_wrong_place_is_refused_without_its_password(name: str) -> None:
    given: dict[str, Any] = {name: SECRET_URL}
    text = refusal(**given)
    assert text.startswith(f"setting {name}")
    assert "redis://anna:***@redis.example:6380/1" in text
    assert "s3cret" not in text


def test_a_url_of_redis_for_the_history_is_refused_without_its_password() -> None:
    text = refusal(history_url=SECRET_URL)
    assert text.startswith(
        "history_url 'redis://anna:***@redis.example:6380/1' is not understood: use sqlite:///"
    )
    assert "s3cret" not in text


def test_a_password_is_in_no_error_of_the_validation_itself() -> None:
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate({"redis_url": [SECRET_URL], "lease": SECRET_URL})
    assert "s3cret" not in str(caught.value)
    settings = Settings.load(None)
    with pytest.raises(ValidationError, match="frozen") as caught:
        settings.redis_url = SECRET_URL  # type: ignore[misc]
    assert "s3cret" not in str(caught.value)


# What they are

MEANINGS: dict[str, str] = {
    row[0].strip("`"): row[3] for _, rows in generate.setting_groups() for row in rows
}
"""What an editor shows for a keyword of `App(…)`, and the reference page lists."""


def test_they_never_change() -> None:
    settings = Settings.load(None)
    with pytest.raises(ValidationError, match="frozen"):
        settings.lease = 5  # type: ignore[misc]


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_documents_its_meaning_its_unit_and_the_effect_of_none_or_zero(name: str) -> None:
    field = Settings.model_fields[name]
    meaning = MEANINGS[name]
    assert meaning.endswith(".")
    assert 20 <= len(meaning) <= 120
    kind = str(field.annotation)
    if "float" in kind:
        assert "Seconds" in meaning
    if "bytes" in name:
        assert "bytes" in meaning
    if field.default is None:
        assert "None" in meaning
    allows_zero = any(getattr(rule, "ge", None) == 0 for rule in field.metadata)
    if allows_zero and "None" not in kind:
        assert "0 " in meaning or "smaller" in meaning or "never less" in meaning


def test_every_setting_stands_in_one_group() -> None:
    listed = [row[0].strip("`") for _, rows in generate.setting_groups() for row in rows]
    assert sorted(listed) == sorted(Settings.model_fields)
    assert listed == [*Settings.model_fields], "the groups and the defaults have one order"


def test_every_setting_can_be_typed_as_an_argument_of_app() -> None:
    fields = Settings.model_fields
    assert get_type_hints(SettingArgs) == {name: field.annotation for name, field in fields.items()}


def test_what_follows_from_others_is_worked_out() -> None:
    settings = Settings.load(None, lease=8)
    assert (settings.beat, settings.maintenance) == (2, 2)
    settings = Settings.load(None, lease=8, heartbeat_interval=1, maintenance_interval=3)
    assert (settings.beat, settings.maintenance) == (1, 3)


def test_a_record_outlives_the_retry_of_a_late_caller() -> None:
    assert Settings.load(None, record_ttl=0).record_ms == 600_000
    assert Settings.load(None, record_ttl=900).record_ms == 900_000
    assert Settings.load(None, record_ttl=0, enqueue_timeout=0.5).record_ms == 600_000
    assert Settings.load(None, record_ttl=0, enqueue_timeout=300).record_ms == 900_000
    assert Settings.load(None, record_ttl=1000, enqueue_timeout=300).record_ms == 1_000_000


@pytest.mark.parametrize(
    "place", ["App(…)", "the environment (FENNELQ_…)", "[tool.fennelq] in pyproject.toml"]
)
def test_the_least_time_for_a_record_is_not_a_setting(
    place: str, pyproject: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, given = None, dict[str, Any]()
    if place == "App(…)":
        given = {"tombstone_ttl": 600}
    elif place.startswith("the environment"):
        monkeypatch.setenv("FENNELQ_TOMBSTONE_TTL", "600")
    else:
        root = pyproject("tombstone_ttl = 600")
    assert refusal(root, **given) == f"{place}: unknown setting 'tombstone_ttl': did you mean 'record_ttl'?"
