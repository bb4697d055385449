"""Requests of other sites, foreign hosts and other machines do nothing; every answer has the headers that keep browsers
from running foreign scripts."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest
from starlette.requests import HTTPConnection

from fennelq import App, ConfigurationError
from fennelq.web import Basic, Proxy, Token, User, dashboard
from fennelq.web.auth import Refused
from fennelq.web.failures import MOST, WITHIN, Failures
from fennelq.web.passwords import is_password, new_token, password_hash, read, token_hash, write
from tests.kit.waiting import aeventually
from tests.web.kit import Browser, Shop, by_name, text_of

pytestmark = pytest.mark.audit(unfinished=True)

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost.evil.example"},
        {"Origin": "http://localhost:8080"},
        {"Accept": "text/html"},
    ],
    ids=str,
)
async def test_a_form_of_another_site_does_nothing(
    shop: Shop, pages: Browser, headers: dict[str, str]
) -> None:
    answer = await pages.http.post("queues/mail/pause", data={"why": "attack"}, headers=headers)
    assert answer.status_code == 403
    assert "nothing was done" in text_of(answer.text)
    assert (await shop.app.queues.info("mail")).paused is None
    assert await shop.app.audit.list() == []


@pytest.mark.parametrize(
    "headers",
    [{"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {"Origin": "http://localhost"}],
    ids=str,
)
async def test_a_form_of_the_dashboard_is_accepted(
    shop: Shop, pages: Browser, headers: dict[str, str]
) -> None:
    answer = await pages.http.post("queues/mail/pause", data={"why": "ours"}, headers=headers)
    assert answer.status_code == 303
    pause = (await shop.app.queues.info("mail")).paused
    assert pause is not None
    assert pause.why == "ours"


async def test_a_program_with_a_token_needs_neither_header(shop: Shop, tmp_path: Path) -> None:
    token = new_token()
    write(tmp_path / "tokens", "ci", token_hash(token), "see,pause")
    async with Browser(shop.app, auth=Token(tmp_path / "tokens")) as pages:
        headers = {"Authorization": f"Bearer {token}"}
        answer = await pages.http.post("queues/mail/pause", data={"why": "deploy"}, headers=headers)
        assert answer.status_code == 303
        # A browser sends what was typed as a password by itself, also for other sites.
        typed = {"Authorization": "Basic " + base64.b64encode(f"ci:{token}".encode()).decode()}
        assert (await pages.http.get("queues", headers=typed)).status_code == 200
        assert (await pages.http.post("queues/mail/resume", headers=typed)).status_code == 403
    (entry,) = await shop.app.audit.list()
    assert (entry.who, entry.what, entry.target, entry.via, entry.state) == (
        "ci@127.0.0.1",
        "queue pause",
        "mail",
        "web",
        "done",
    )


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:3367",
        "localhost.evil.example",
        "10.0.0.7",
        "",
        "a b",
        "@localhost",
        "[::",
        "localhost/x",
    ],
)
async def test_a_foreign_host_is_refused(app: App, pages: Browser, host: str) -> None:
    answer = await pages.http.get("", headers={"Host": host})
    assert answer.status_code == 403
    answer = await pages.http.get("static/1/live.js", headers={"Host": host})
    assert answer.status_code == 403


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:3367", "127.0.0.1:80", "[::1]:3367", "LOCALHOST", "shop.localhost"]
)
async def test_names_of_this_machine_are_known(app: App, pages: Browser, host: str) -> None:
    assert (await pages.http.get("", headers={"Host": host})).status_code == 200


async def test_hosts_are_names_and_patterns(app: App) -> None:
    async with Browser(app, auth=by_name, hosts=["jobs.example.com", "*.internal"]) as pages:
        for host, status in {
            "jobs.example.com": 200,
            "Jobs.Example.Com:443": 200,
            "a.internal": 200,
            "10.1.2.3": 200,
            "internal": 403,
            "example.com": 403,
        }.items():
            assert (await pages.get("", user="all", Host=host)).status_code == status, host
    with pytest.raises(ConfigurationError, match="hosts is a list"):
        dashboard(app, hosts="jobs.example.com")


async def test_without_a_way_to_sign_in_other_machines_get_nothing(app: App) -> None:
    async with Browser(app, client="10.0.0.9") as pages:
        answer = await pages.get("/")
        assert answer.status_code == 403
        assert "auth=Basic(users_file), auth=Token(tokens_file) or auth=Proxy(" in text_of(answer.text)
    async with Browser(app) as pages:
        for name in ("X_Forwarded_For", "Forwarded", "X_Real_IP"):
            assert (await pages.get("/", **{name: "10.0.0.9"})).status_code == 403


async def test_every_answer_has_the_headers(shop: Shop, pages: Browser) -> None:
    for path, status in {"/": 200, "/nosuch": 404, "/queues/nosuch": 404, "/static/1/live.js": 200}.items():
        answer = await pages.get(path)
        assert answer.status_code == status
        assert answer.headers["Content-Security-Policy"] == CSP
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "same-origin"
    assert (await pages.get("/")).headers["Cache-Control"] == "no-store"
    answer = await pages.post("/queues/mail/pause")
    assert answer.headers["Content-Security-Policy"] == CSP


async def test_no_page_has_an_inline_style_or_script(shop: Shop, pages: Browser) -> None:
    for path in (
        "/",
        "/queues",
        "/queues/mail",
        f"/jobs/{shop.dead[0]}",
        f"/dead/{await shop.group()}",
        "/jobs?q=state:dead",
    ):
        html = (await pages.get(path)).text
        assert " style=" not in html
        assert "<style" not in html
        assert "<script>" not in html
        assert " onclick" not in html
        assert "javascript:" not in html
        assert "http://" not in html.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in html


async def test_static_files_are_those_of_the_package_only(pages: Browser) -> None:
    for name in ("nosuch.js", "..~2Froutes.py", "~2Fetc~2Fpasswd", "../base.html"):
        assert (await pages.get(f"/static/1/{name}")).status_code in (401, 404), name


# Signing in


async def test_passwords_of_a_file_sign_in(app: App, tmp_path: Path) -> None:
    file = tmp_path / "users"
    write(file, "ada", password_hash("correct horse"), "read")
    async with Browser(app, auth=Basic(file)) as pages:
        assert (await pages.http.get("")).headers["WWW-Authenticate"].startswith("Basic ")
        for user, password, status in (
            ("ada", "correct horse", 200),
            ("ada", "correct horse", 200),
            ("ada", "wrong", 401),
            ("bob", "correct horse", 401),
        ):
            assert (await pages.http.get("", auth=(user, password))).status_code == status
        page = await pages.http.get("", auth=("ada", "correct horse"))
        assert "ada, may only look" in text_of(page.text)
        write(file, "ada", password_hash("another one"), "all")
        assert (await pages.http.get("", auth=("ada", "correct horse"))).status_code == 401
        page = await pages.http.get("", auth=("ada", "another one"))
        assert "ada, may do everything" in text_of(page.text)


async def test_ten_wrong_passwords_of_an_address_are_enough(app: App, tmp_path: Path) -> None:
    file = tmp_path / "users"
    write(file, "ada", password_hash("correct horse"), "all")
    async with Browser(app, auth=Basic(file)) as pages:
        statuses = [(await pages.http.get("", auth=("ada", "wrong"))).status_code for _ in range(MOST + 1)]
        assert statuses == [401] * MOST + [429]
        answer = await pages.http.get("", auth=("ada", "correct horse"))
        assert answer.status_code == 429
        assert 0 < int(answer.headers["Retry-After"]) <= WITHIN
    async with Browser(app, auth=Basic(file)) as pages:
        for _ in range(MOST + 1):  # without a password, nothing is counted: a browser asks like this first
            assert (await pages.http.get("")).status_code == 401
        assert (await pages.http.get("", auth=("ada", "correct horse"))).status_code == 200


async def test_many_wrong_passwords_at_once_are_no_more_than_ten(app: App) -> None:
    """Each is looked at for a while: those that come meanwhile wait for what becomes of it."""
    looked_at, gate = list[str](), asyncio.Event()

    async def slowly(request: HTTPConnection) -> User | None:
        looked_at.append(request.headers["X-Password"])
        await gate.wait()
        raise Refused("ada")

    async with Browser(app, auth=slowly) as pages:
        asked = [asyncio.create_task(pages.get("/", X_Password=str(number))) for number in range(5 * MOST)]
        await aeventually(lambda: len(looked_at) == MOST)
        gate.set()
        statuses = [(await one).status_code for one in asked]
    assert len(looked_at) == MOST
    assert sorted(statuses) == [401] * MOST + [429] * 4 * MOST


async def test_right_passwords_that_come_at_once_are_all_accepted(app: App) -> None:
    async def slowly(_: HTTPConnection) -> User | None:
        await asyncio.sleep(0)
        return User("ada", ["see"])

    async with Browser(app, auth=slowly) as pages:
        answers = await asyncio.gather(*(pages.get("/audit") for _ in range(3 * MOST)))
        assert {answer.status_code for answer in answers} == {200}


async def test_a_damaged_file_of_users_shows_nothing_of_it(
    app: App, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "users"
    write(file, "ada", password_hash("correct horse"), "all")
    async with Browser(app, auth=Basic(file)) as pages:
        file.write_text("ada nothing-else")
        answer = await pages.http.get("", auth=("ada", "correct horse"))
        assert answer.status_code == 503
        assert str(tmp_path) not in answer.text


async def test_the_way_to_the_first_of_several_apps_is_for_users_too(app: App, redis_url: str) -> None:
    other = App("blog", redis_url=redis_url)
    async with Browser(app, other, auth=by_name) as pages:
        answer = await pages.get("/")
        assert answer.status_code == 401
        assert "shop" not in answer.headers.get("Location", "")
        assert (await pages.get("/", user="cancel")).status_code == 403
        assert (await pages.get("/", user="see")).headers["Location"] == "./shop/"
    await other.close()


async def test_a_user_who_may_see_nothing_gets_no_numbers_in_the_navigation(shop: Shop) -> None:
    async with Browser(shop.app, auth=by_name) as pages:
        assert "Dead letters 3" in text_of((await pages.get("/", user="see")).text)
        page = text_of((await pages.get("/", user="cancel")).text)
        assert "may not see the pages" in page
        assert "Dead letters" not in page
        assert "valkey" not in page


def test_failures_are_forgotten_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("fennelq.clock.monotonic", lambda: now[0])
    failures = Failures()
    for _ in range(MOST):
        assert failures.wait("a") == 0
        failures.add("a")
    assert failures.wait("a") == WITHIN
    assert failures.wait("b") == 0
    now[0] += WITHIN
    assert failures.wait("a") == 0


def test_the_addresses_of_one_network_of_version_6_count_together() -> None:
    failures = Failures()
    for number in range(MOST):
        failures.add(f"2001:db8:1:2::{number:x}")
    assert failures.wait("2001:db8:1:2:ffff::1") > 0
    assert failures.wait("2001:db8:1:3::1") == 0
    for address in ("::ffff:10.0.0.1", "10.0.0.2", "", "fe80::1%eth0"):
        assert failures.wait(address) == 0
    for _ in range(MOST):
        failures.add("::ffff:10.0.0.1")
    assert failures.wait("10.0.0.1") > 0
    assert failures.wait("::ffff:10.0.0.2") == 0


def test_the_hash_of_a_password_does_not_contain_it() -> None:
    made = password_hash("correct horse")
    assert "correct" not in made
    assert made != password_hash("correct horse")
    assert is_password("correct horse", made)
    assert not is_password("correct horsE", made)
    for broken in ("", "scrypt$1$2", made.replace("16384", "99999999"), made[:-3], "sha256$00"):
        assert not is_password("correct horse", broken)


def test_a_file_of_users_is_read_line_by_line() -> None:
    known = read("# users\n\nada x all\nbob y see,send:shop.reports.*\n", "users")
    assert known["ada"].user.in_words == "do everything"
    bob = known["bob"].user
    assert bob.can("send")
    assert bob.can_send("shop.reports:yearly") is False
    assert bob.can_send("shop.reports.yearly:make")
    assert not bob.can_send("shop.mail:welcome")
    for text in ("ada x", "ada x all\nada y all", "a/b x all", "ada x evrything"):
        with pytest.raises(ConfigurationError, match="users, line"):
            read(text, "users")


def connection(client: str, **headers: str) -> HTTPConnection:
    raw = [(name.lower().replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return HTTPConnection({"type": "http", "headers": raw, "client": (client, 1)})


def test_a_proxy_is_trusted_by_its_address() -> None:
    proxy = Proxy("X-Forwarded-User", trusted=["10.0.0.0/8", "fd00::/8"], may=["see"])
    for client in ("10.1.2.3", "::ffff:10.1.2.3", "fd00::1"):
        assert proxy(connection(client, X_Forwarded_User="ada")) == User("ada", ["see"])
    for client in ("11.0.0.1", "127.0.0.1", "::1", "", "unix:"):
        assert proxy(connection(client, X_Forwarded_User="ada")) is None
    assert proxy(connection("10.1.2.3")) is None
    with pytest.raises(ConfigurationError, match="is not a network"):
        Proxy("X-Forwarded-User", trusted=["10.0.0.0/99"])


async def test_the_name_that_a_proxy_gives_is_recorded(shop: Shop) -> None:
    async with Browser(shop.app, auth=Proxy("X-Forwarded-User", trusted=["127.0.0.1"])) as pages:
        assert (await pages.get("/", X_Forwarded_User="ada")).status_code == 200
        assert (await pages.get("/", X_Forwarded_User=" ")).status_code == 401
        headers = {"X-Forwarded-User": "ada", "Sec-Fetch-Site": "same-origin"}
        await pages.http.post("queues/mail/pause", headers=headers)
    (entry,) = await shop.app.audit.list()
    assert entry.who == "ada@127.0.0.1"


async def test_a_function_of_your_own_signs_in(app: App) -> None:
    async def sessions(request: HTTPConnection) -> User | None:
        return User("ada", ["see"]) if request.cookies.get("session") == "s3" else None

    async with Browser(app, auth=sessions) as pages:
        assert (await pages.get("/", Cookie="session=s3")).status_code == 200
        assert (await pages.get("/", Cookie="session=s4")).status_code == 401
