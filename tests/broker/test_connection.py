"""From a URL to an address: where the server is and what to send to it first."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from functools import partial
from pprint import pformat
from typing import Any, cast

import pytest
from redis import connection as redis_connection

from fennelq import App
from fennelq.broker.blocking_link import BlockingLink
from fennelq.broker.broker import Broker
from fennelq.broker.connection import address_of, masked
from fennelq.broker.link import Link
from fennelq.errors import ConfigurationError

SECRET = "s3cret"


def test_a_plain_url_names_host_port_and_no_commands() -> None:
    address = address_of("redis://redis.example:6380")
    assert (address.host, address.port, address.path) == ("redis.example", 6380, "")
    assert address.greeting == ()
    assert address.tls is None
    assert address.shown == "redis://redis.example:6380"


@pytest.mark.parametrize(
    "url", ["redis://", "redis://localhost", "redis://localhost/0", "redis://localhost:6379"]
)
def test_what_a_url_leaves_out_is_as_usual(url: str) -> None:
    address = address_of(url)
    assert (address.host, address.port, address.greeting) == ("localhost", 6379, ())


@pytest.mark.parametrize(
    ("url", "greeting"),
    [
        ("redis://:s3cret@h", (("AUTH", "s3cret"),)),
        ("redis://anna:s3cret@h", (("AUTH", "anna", "s3cret"),)),
        ("redis://h?password=s3cret", (("AUTH", "s3cret"),)),
        ("redis://h?username=anna&password=s3cret", (("AUTH", "anna", "s3cret"),)),
        ("redis://anna:s3cret%2F%40%3A@h", (("AUTH", "anna", "s3cret/@:"),)),
        ("redis://h/3", (("SELECT", 3),)),
        ("redis://h?db=3", (("SELECT", 3),)),
        ("redis://:s3cret@h/3", (("AUTH", "s3cret"), ("SELECT", 3))),
        ("unix://:s3cret@/run/redis.sock?db=3", (("AUTH", "s3cret"), ("SELECT", 3))),
    ],
)
def test_password_and_database_are_sent_first(url: str, greeting: object) -> None:
    assert address_of(url).greeting == greeting


@pytest.mark.parametrize(
    "url",
    [
        "redis://",
        "redis://h:1/2",
        "redis://H.example/0",
        "redis://[::1]:6380/1",
        "redis://anna:s3%20cret%2F%40@h?db=4",
        "redis://h/3?db=5&username=anna&password=p%26q",
        "rediss://h:6380/1?ssl_ca_path=%2Fetc&ssl_check_hostname=no",
        "unix:///run/a%20b.sock",
        "unix://anna:s3cret@/run/redis.sock?db=3",
    ],
)
def test_a_url_means_what_it_means_to_redis_py(url: str) -> None:
    theirs: dict[str, Any] = cast("Any", redis_connection).parse_url(url)
    address = address_of(url)
    assert address.host == theirs.get("host", "localhost")
    assert address.port == theirs.get("port", 6379)
    assert address.path == theirs.get("path", "")
    user = (theirs["username"],) if "username" in theirs else ()
    login = (("AUTH", *user, theirs["password"]),) if "password" in theirs else ()
    assert address.greeting == login + ((("SELECT", theirs["db"]),) if theirs.get("db") else ())


def test_a_unix_socket_is_a_path() -> None:
    address = address_of("unix:///run/redis.sock")
    assert address.path == "/run/redis.sock"
    assert address.tls is None


def test_tls_checks_the_server_unless_configured_otherwise() -> None:
    strict = address_of("rediss://h").tls
    lax = address_of("rediss://h?ssl_check_hostname=false").tls
    blind = address_of("rediss://h?ssl_cert_reqs=none").tls
    assert strict is not None
    assert lax is not None
    assert blind is not None
    assert (strict.check_hostname, strict.verify_mode) == (True, ssl.CERT_REQUIRED)
    assert (lax.check_hostname, lax.verify_mode) == (False, ssl.CERT_REQUIRED)
    assert (blind.check_hostname, blind.verify_mode) == (False, ssl.CERT_NONE)


@pytest.mark.parametrize("word", ["false", "False", "0", "no", "N", "f"])
def test_every_word_with_which_redis_py_turns_the_check_of_the_host_off_does(word: str) -> None:
    tls = address_of(f"rediss://h?ssl_check_hostname={word}").tls
    assert tls is not None
    assert not tls.check_hostname
    assert tls.verify_mode == ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:1/2", "redis://h:1/2"),
        ("redis://:s3cret@h:1/2", "redis://:***@h:1/2"),
        ("redis://anna:s3cret@h", "redis://anna:***@h"),
        ("redis://anna@h", "redis://anna@h"),
        ("rediss://anna:s3cret@h?ssl_cert_reqs=none", "rediss://anna:***@h?ssl_cert_reqs=none"),
        ("redis://h?password=s3cret&db=1", "redis://h?password=***&db=1"),
        ("redis://h?db=1&password=s3cret", "redis://h?db=1&password=***"),
        ("unix://:s3cret@/run/redis.sock", "unix://:***@/run/redis.sock"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    assert masked(url) == shown
    assert address_of(url).shown == shown


@pytest.mark.parametrize("show", [repr, str, "{}".format, pformat, partial(json.dumps, default=str)])
def test_a_password_is_not_shown_with_the_address(show: Callable[[object], str]) -> None:
    for shown in (address := address_of("redis://anna:s3cret@h:1/2"), [address], {"address": address}):
        assert SECRET not in show(shown)
        assert "redis://anna:***@h:1/2" in show(shown)


async def test_what_holds_an_address_shows_no_password() -> None:
    address = address_of("redis://anna:s3cret@h:1/2")
    app = App("shop", redis_url="redis://anna:s3cret@h:1/2")
    for holder in (app, app.client, app.blocking, Link(address), BlockingLink(address), Broker(address)):
        assert SECRET not in repr(holder)


@pytest.mark.parametrize(
    "url",
    [
        "http://:s3cret@h",
        "h:6379",
        "",
        "redis://:s3cret@h:port",
        "redis://:s3cret@h:99999999",
        "redis://:s3cret@h?db=three",
        "redis://:s3cret@h/three",
        "redis://:s3cret@h/1/2",
        "rediss://:s3cret@h?ssl_ca_certs=/no/such/file",
    ],
)
def test_what_is_not_understood_is_one_sentence_without_the_password(url: str) -> None:
    with pytest.raises(ConfigurationError, match="is not understood") as raised:
        address_of(url)
    assert SECRET not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    "url",
    [
        "redis://:s3cret@[h",
        "redis://:[s3cret@h",
        "redis://:s3cret/@h",
        "redis://:s3cret#@h",
        "redis://:s3cret?@h",
        "redis://:/s3cret@h",
    ],
)
def test_a_password_that_should_have_been_escaped_is_not_shown_either(url: str) -> None:
    with pytest.raises(ConfigurationError, match="is not understood") as raised:
        address_of(url)
    assert SECRET not in str(raised.value)
