"""`fennelq web`: the dashboard in a process of its own; its users and tokens."""

from __future__ import annotations

import re
import socket
import stat
from pathlib import Path

import httpx
import pytest

from fennelq.cli.exits import Exit
from fennelq.web.passwords import is_password, read
from fennelq.web.users import READ_ONLY, RIGHTS
from tests.cli.shop import Shop
from tests.kit.server import Server
from tests.kit.spawn import Spawner


def test_it_shows_an_app_without_its_code_and_ends_with_a_stream_open(server: Server, spawn: Spawner) -> None:
    process = spawn(
        *(
            "fennelq",
            "web",
            "--port",
            "0",
            "--redis-url",
            server.url,
            "--namespace",
            "shop",
            "--namespace",
            "blog",
        )
    )
    line = process.wait_for("for this machine", within=30)
    found = re.search(r"(http://127\.0\.0\.1:\d+/) shows shop, blog of redis://127\.0\.0\.1", line)
    assert found is not None
    with httpx.Client(timeout=20, follow_redirects=True) as http:
        page = http.get(found[1])
        assert page.status_code == 200
        assert str(page.url) == f"{found[1]}shop/"
        assert "Nothing has happened here yet" in page.text
        with http.stream("GET", f"{found[1]}shop/live?view=/") as events:
            lines = events.iter_lines()
            while not next(lines).startswith("event: fragment"):
                pass
            process.term()
            assert "event: end" in lines
    assert process.returncode() == 0
    assert "Traceback" not in process.text


def test_without_a_name_it_shows_the_apps_of_a_redis(shop: Shop, server: Server, spawn: Spawner) -> None:
    shop.kill(1)
    process = spawn("fennelq", "web", "--port", "0", "--redis-url", server.url)
    line = process.wait_for("for this machine", within=30)
    found = re.search(r"(http://127\.0\.0\.1:\d+/) shows the apps of redis://127\.0\.0\.1", line)
    assert found is not None
    with httpx.Client(timeout=20, follow_redirects=True) as http:
        page = http.get(found[1])
        assert (page.status_code, str(page.url)) == (200, f"{found[1]}shop/")
        assert "1 job of" in page.text
    process.term()
    assert process.returncode() == 0
    assert "Traceback" not in process.text


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3"])
def test_other_machines_are_answered_only_if_users_sign_in(shop: Shop, host: str) -> None:
    answer = shop.run("web", "--host", host, "--namespace", "shop")
    assert answer.code == Exit.CONFIGURATION
    for way in ("--users FILE", "--tokens FILE", "--proxy-header X-Forwarded-User --trusted 10.0.0.0/8"):
        assert way in answer.err


def test_a_port_that_is_in_use_is_named(shop: Shop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = shop.run("web", "--port", str(port), "--namespace", "shop")
    assert answer.code == Exit.CONFIGURATION
    assert f"port {port} of 127.0.0.1 is in use" in answer.err
    assert "--port 0" in answer.err


def test_without_an_app_it_names_the_options_that_need_none(folder: Path, shop: Shop) -> None:
    for name in folder.glob("*.py"):
        name.unlink()
    answer = shop.run("web")
    assert answer.code == Exit.CONFIGURATION
    assert "--redis-url URL shows the apps of a Redis" in answer.err


def test_a_user_gets_a_password_and_rights(shop: Shop, folder: Path) -> None:
    users, add = folder / "users", ("web", "user", "ada", "--users", "users", "--may")
    for password, may, rights, what in (
        ("correct horse", "read", READ_ONLY, "added"),
        ("another one", "all", RIGHTS, "changed"),
    ):
        answer = shop.run(*add, may, stdin=f"{password}\n")
        assert (answer.code, answer.out) == (Exit.OK, f"ada: {what}, may {may}\n")
        known = read(users.read_text(), "users")["ada"]
        assert is_password(password, known.hash)
        assert known.user.rights == rights
        assert password not in users.read_text()
    assert stat.S_IMODE(users.stat().st_mode) == 0o600


def test_a_short_password_and_an_unknown_right_are_refused(shop: Shop, folder: Path) -> None:
    answer = shop.run("web", "user", "bob", "--users", "users", stdin="short\n")
    assert (answer.code, "at least 8 characters" in answer.err) == (Exit.USAGE, True)
    answer = shop.run("web", "user", "bob", "--users", "users", "--may", "evrything", stdin="long enough\n")
    assert (answer.code, "is not a right" in answer.err) == (Exit.CONFIGURATION, True)
    assert not (folder / "users").exists()


def test_ways_to_sign_in_exclude_each_other(shop: Shop, folder: Path) -> None:
    answer = shop.run("web", "--users", "a", "--tokens", "b", "--namespace", "shop")
    assert (answer.code, "exclude each other" in answer.err) == (Exit.USAGE, True)
    answer = shop.run("web", "--users", "nosuch", "--namespace", "shop")
    assert (answer.code, "`fennelq web user NAME --users nosuch` writes it" in answer.err) == (
        Exit.CONFIGURATION,
        True,
    )
