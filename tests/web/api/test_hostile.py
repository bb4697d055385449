"""What hostile or careless programs do to the HTTP API: paths, methods, heads without end, clients that leave, texts
for the log."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from structlog.testing import capture_logs

from fennelq import App
from fennelq.errors import BrokerUnavailable, ConfigurationError
from fennelq.web import Basic, Token, reading
from fennelq.web.failures import MOST
from fennelq.web.http.paths import PREFIX
from fennelq.web.http.routes import ROUTES
from fennelq.web.http.table import ANY_USER
from fennelq.web.passwords import new_token, password_hash, read, token_hash, write
from fennelq.web.ports import bound
from fennelq.web.serving import serving
from tests.kit.apps import LocalApp
from tests.kit.proxy import Proxy
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.web.api.kit import JSON, Program, declare, problem_in
from tests.web.api.test_contract import filled
from tests.web.api.test_jobs import events_in
from tests.web.kit import by_name

WELCOME: dict[str, Any] = {"task": "shop:welcome", "kwargs": {"user_id": 42}}
EVIL = "\x1b[2J\x1b]0;owned\x07\u202egnp\x9b31m"
DETOURS = (
    "{}/",
    "{}//",
    "/{}",
    "{}/.",
    "{}%2f",
    "{};x",
    "{}%00",
    "{}?a=b",
    "{}.json",
    "/.{}",
    "/x/..{}",
    "/x/%2e%2e{}",
)


async def asked(program: Program, method: str, path: str, **headers: str) -> httpx.Response:
    """Ask for a path as it is: httpx would tidy it up."""
    url = httpx.URL("http://localhost").copy_with(raw_path=path.encode("latin-1"))
    return await program.http.request(method, url, headers={**JSON, **headers}, content=b"{}")


# Ways around the rights


async def test_no_spelling_of_a_path_leads_around_the_rights(app: App) -> None:
    async with Program(app, auth=by_name) as program:
        for row in ROUTES:
            path = PREFIX + filled(row.path)
            spellings = [one.format(path) for one in DETOURS]
            spellings += [path.upper(), path.replace("/api/", "/API/"), path.replace("jobs", "%6Aobs")]
            spellings += [path.removeprefix(PREFIX), path.replace("v1/", "v1//"), path.replace("/v1", "")]
            for spelling in spellings:
                answer = await asked(program, row.method, spelling, **{"X-User": "nothing"})
                public = row.right == ANY_USER and answer.status_code == 200
                assert public or answer.status_code in (400, 403, 404, 405), (spelling, answer.text)
                assert (await asked(program, row.method, spelling)).status_code == 401, spelling
    assert await app.audit.list() == []


@pytest.mark.parametrize("method", ["OPTIONS", "TRACE", "PATCH", "CONNECT", "PROPFIND", "POST\t"])
async def test_other_methods_do_nothing(app: App, method: str) -> None:
    async with Program(app, auth=by_name) as program:
        for row in ROUTES:
            answer = await asked(program, method, PREFIX + filled(row.path), **{"X-User": "all"})
            assert answer.status_code in (403, 405), (method, row.path)
    assert await app.audit.list() == []


async def test_a_header_does_not_change_the_method(app: App) -> None:
    async with Program(app, auth=by_name) as program:
        for name in ("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"):
            answer = await asked(
                program, "GET", f"{PREFIX}/jobs/mail:nosuch", **{name: "DELETE", "X-User": "all"}
            )
            assert answer.status_code == 404
    assert await app.audit.list() == []


async def test_head_needs_the_right_of_get(app: App) -> None:
    async with Program(app, auth=by_name) as program:
        for row in ROUTES:
            if row.method == "GET" and row.right != ANY_USER:
                answer = await asked(program, "HEAD", PREFIX + filled(row.path), **{"X-User": "nothing"})
                assert answer.status_code == 403, row.path


async def test_the_paths_of_the_api_are_below_their_prefix_only(program: Program) -> None:
    for path in ("/jobs", "/queues", "/reference"):
        assert (await program.http.get(path)).status_code == 404
    assert (await program.http.get("/openapi.json")).status_code == 200


# Clients that leave


async def test_a_client_that_leaves_before_its_stream_begins_gives_its_place_back(
    program: Program,
) -> None:
    job = (await program.post("/jobs", WELCOME)).json()["id"]
    path = f"{PREFIX}/jobs/{job}/events"
    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 5),
        "server": ("localhost", 80),
        "asgi": {"version": "3.0", "spec_version": "2.3"},
    }

    async def left() -> MutableMapping[str, Any]:
        return {"type": "http.disconnect"}

    async def into_nothing(_: MutableMapping[str, Any]) -> None: ...

    for _ in range(3):
        await program.api(scope, left, into_nothing)
    assert program.api.office.streams.taken == 0


async def test_head_of_a_stream_is_answered_at_once(program: Program) -> None:
    job = (await program.post("/jobs", WELCOME)).json()["id"]
    answer = await program.http.head(f"{PREFIX}/jobs/{job}/events")
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    assert (answer.status_code, program.api.office.streams.taken) == (200, 0)


async def test_a_stream_goes_on_when_redis_comes_back(server: Server) -> None:
    with Proxy(server.url) as proxy:
        app = LocalApp("shop", redis_url=proxy.url)
        declare(app)
        async with Program(app) as program, app, LocalApp("shop", redis_url=server.url) as other:
            job = (await program.post("/jobs", WELCOME)).json()["id"]
            stream = asyncio.create_task(program.get(f"/jobs/{job}/events"))
            await aeventually(lambda: app.client.waiting.stored[1] == 1)
            proxy.refuse()
            await other.jobs.cancel(job, "left", wait=0)
            proxy.up()
            status, end = events_in((await stream).text)
    assert status == ("status", {"id": job, "status": "SENT"})
    error = {"type": "JobCancelled", "message": "left"}
    assert end == ("end", {"id": job, "status": "CANCELLED", "error": error})


async def test_a_stream_that_cannot_go_on_ends_without_an_end(
    program: Program, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise BrokerUnavailable("is away")

    monkeypatch.setattr("fennelq.result.progress_of", away)
    job = (await program.post("/jobs", WELCOME)).json()["id"]
    stream = asyncio.create_task(program.get(f"/jobs/{job}/events"))
    await aeventually(lambda: app.client.waiting.stored[1] == 1)
    await app.jobs.cancel(job, wait=0)
    answer = await stream
    assert (answer.status_code, [kind for kind, _ in events_in(answer.text)]) == (200, ["status"])
    assert program.api.office.streams.taken == 0


# Redis away, many jobs


@pytest.mark.usefixtures("impatient")
async def test_many_jobs_are_refused_at_once_while_redis_is_away(program: Program, server: Server) -> None:
    assert (await program.post("/jobs:bulk", {"jobs": [WELCOME]})).json()["created"] == 1
    server.pause()
    try:
        answer = await program.post("/jobs:bulk", {"jobs": [WELCOME] * 3000})
    finally:
        server.resume()
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert "nothing was done" in problem_in(answer)["detail"]


async def test_when_redis_goes_away_between_many_jobs_the_others_do_not_wait_for_it(
    program: Program, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    send = app.enqueue

    async def away(jobs: Any) -> Any:
        tried.append(len(jobs))
        if len(tried) > 1:
            raise BrokerUnavailable("is away")
        return await send(jobs)

    monkeypatch.setattr(app, "enqueue", away)
    answer = await program.post("/jobs:bulk", {"jobs": [WELCOME] * 4500})
    statuses = [one["status"] for one in answer.json()["answers"]]
    assert statuses == [201] * 1000 + [503] * 3500
    assert tried == [1000, 1000]
    named = [one["problem"]["repeat_with"][0]["job_id"] for one in answer.json()["answers"][1000:]]
    assert len({*named}) == 3500


async def test_the_longest_key_is_one_of_many_jobs_too(program: Program) -> None:
    body = {"jobs": [WELCOME] * 12}
    answer = await program.post("/jobs:bulk", body, Idempotency_Key="k" * 255)
    assert {one["status"] for one in answer.json()["answers"]} == {201}


async def test_the_key_of_one_job_is_not_that_of_a_place_among_many(program: Program) -> None:
    one = await program.post("/jobs", WELCOME, Idempotency_Key='"batch 0"')
    many = await program.post("/jobs:bulk", {"jobs": [WELCOME]}, Idempotency_Key="batch")
    assert (one.status_code, many.json()["created"]) == (201, 1)


async def test_lines_without_end_are_refused_without_reading_them_all(program: Program) -> None:
    for line in (b"1\n", b"{}\n"):
        answer = await program.http.post(
            f"{PREFIX}/jobs:bulk",
            content=line * 1_000_000,
            headers={"Content-Type": "application/x-ndjson"},
        )
        assert answer.status_code == 422
        assert "more than 10,000 jobs" in problem_in(answer)["detail"]


# Signing in


@pytest.fixture
def tokens(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A file of tokens, and the headers of one."""
    token, path = new_token(), tmp_path / "tokens"
    write(path, "ci", token_hash(token), "all")
    return path, {"Authorization": f"Bearer {token}"}


async def test_a_file_of_tokens_that_cannot_be_read_any_more_lets_no_one_in_and_names_no_path(
    app: App, tokens: tuple[Path, dict[str, str]]
) -> None:
    path, headers = tokens
    good = path.read_text("utf-8")
    async with Program(app, auth=Token(path)) as program:
        assert (await program.http.get("/metrics", headers=headers)).status_code == 200
        with capture_logs() as lines:
            for broken in ("ci sha256$0", "ci sha256$0 sned\n", None):
                path.unlink() if broken is None else path.write_text(broken, "utf-8")
                for given in (headers, {"Authorization": "Bearer wrong"}):
                    answer = await program.http.get("/metrics", headers=given)
                    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "10")
                    assert problem_in(answer)["type"] == "urn:fennelq:sign-in-unavailable"
                    assert "tokens" not in answer.text, "callers learn nothing about the files of the server"
        found = [line for line in lines if line["event"] == "sign_in_unavailable"]
        assert len(found) == 1, "it is logged once a minute"
        assert f"{path}, line 1" in found[0]["error"]
        path.write_text(good, "utf-8")
        assert (await program.http.get("/metrics", headers=headers)).status_code == 200


async def test_wrong_tokens_of_an_address_do_not_keep_out_right_ones(
    app: App, tokens: tuple[Path, dict[str, str]]
) -> None:
    path, headers = tokens
    async with Program(app, auth=Token(path)) as program:
        wrong = {"Authorization": "Bearer fq_wrong"}
        statuses = [(await program.http.get("/metrics", headers=wrong)).status_code for _ in range(MOST + 2)]
        assert statuses == [401] * MOST + [429] * 2
        assert (await program.http.get("/metrics", headers=headers)).status_code == 200


async def test_wrong_passwords_keep_the_address_out(app: App, tmp_path: Path) -> None:
    write(tmp_path / "users", "ada", password_hash("correct horse"), "all")
    async with Program(app, auth=Basic(tmp_path / "users")) as program:
        for _ in range(MOST):
            assert (await program.http.get("/metrics", auth=("ada", "wrong"))).status_code == 401
        answer = await program.http.get("/metrics", auth=("ada", "correct horse"))
    assert answer.status_code == 429
    assert int(answer.headers["Retry-After"]) >= 1


def test_tokens_that_are_added_at_once_are_all_there(tmp_path: Path) -> None:
    path, names = tmp_path / "tokens", [f"ci-{number}" for number in range(40)]

    def add(name: str) -> None:
        write(path, name, token_hash(new_token()), "send")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, names))
    assert {*read(path.read_text("utf-8"), "tokens")} == {*names}


def test_a_file_of_tokens_that_cannot_be_written_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens"
    write(path, "ci", token_hash(new_token()), "send")
    before = path.read_text("utf-8")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ConfigurationError, match="tokens cannot be written: No space left on device"):
        write(path, "other", token_hash(new_token()), "send")
    assert path.read_text("utf-8") == before
    assert [one.name for one in tmp_path.iterdir()] == ["tokens"]


# A real server


@asynccontextmanager
async def served(program: Program) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to the API as `fennelq api` serves it."""
    listening, started = bound("127.0.0.1", 0), asyncio.Event()
    task = asyncio.create_task(serving(program.api, [listening], started.set))
    await started.wait()
    reader, writer = await asyncio.open_connection(*listening.getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        os.kill(os.getpid(), signal.SIGTERM)
        await task


HEAD = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    "head",
    [HEAD + b"X-Long: " + b"a" * (1 << 20), HEAD + b"X: y\r\n" * (1 << 17), b"GET /" + b"a" * (1 << 20)],
    ids=["a header", "many headers", "a path"],
)
async def test_a_head_without_end_is_cut(
    program: Program, monkeypatch: pytest.MonkeyPatch, head: bytes
) -> None:
    monkeypatch.setattr(reading, "HEAD_WITHIN", 3600.0)
    async with served(program) as (reader, writer):
        writer.write(head)
        try:
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        except ConnectionResetError:
            pass  # the answer does not arrive when the server has not read everything


async def test_a_head_that_does_not_become_complete_ends_the_connection(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "HEAD_WITHIN", 0.05)
    async with served(program) as (reader, writer):
        writer.write(HEAD)
        assert await reader.read() == b""


async def test_requests_after_each_other_have_a_head_each(program: Program) -> None:
    async with served(program) as (reader, writer):
        body = b'{"task": "' + b"x" * (200 << 10) + b'"}'
        call = b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        for _ in range(3):
            writer.write(call + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 422 ")
            length = re.search(rb"content-length: (\d+)", head)
            assert length is not None
            await reader.readexactly(int(length[1]))


class Slow:
    """An application whose answer takes until the test lets it go."""

    def __init__(self) -> None:
        self.asked, self.ending, self.closed = asyncio.Event(), asyncio.Event(), False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        self.asked.set()
        await self.ending.wait()
        await PlainTextResponse(f"closed: {self.closed}")(scope, receive, send)

    def end_streams(self) -> None:
        self.ending.set()

    async def close(self) -> None:
        self.closed = True


async def test_what_is_under_way_is_answered_before_everything_is_closed() -> None:
    slow, listening, started = Slow(), bound("127.0.0.1", 0), asyncio.Event()
    task = asyncio.create_task(serving(slow, [listening], started.set))
    await started.wait()
    reader, writer = await asyncio.open_connection(*listening.getsockname())
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    await slow.asked.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    assert (await reader.read()).endswith(b"closed: False")
    await task
    assert slow.closed
    writer.close()


# The log

LOGGING = """
import asyncio, sys
from urllib.parse import quote
import httpx
from fennelq import App, log
from fennelq.manage.queues.queues import Queues
from fennelq.web import api
from fennelq.web.http.answering import Answering
if sys.argv[1] != "none":
    log.setup(sys.argv[1])
async def info(self, name):
    raise RuntimeError(name)
Queues.info = info
async def check(self, call):
    pass
Answering._check_redis = check
async def main():
    made = api(App("shop", redis_url="redis://127.0.0.1:1/0"))
    transport = httpx.ASGITransport(made, client=("127.0.0.1", 5))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        evil = {b"User-Agent": sys.argv[2].encode("latin-1", "replace"), b"X-Evil": b"\\x1b[2J"}
        answer = await http.get("/api/v1/queues/" + quote(sys.argv[2], safe=""), headers=evil)
        assert answer.status_code == 500, answer.status_code
asyncio.run(main())
"""


@pytest.mark.parametrize("form", ["json", "console", "none"])
def test_a_hostile_text_in_the_log_drives_no_terminal(form: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LOGGING, form, EVIL + "\nfennelq.web forged"],
        check=True,
        capture_output=True,
    )
    text = ended.stderr.decode("utf-8")
    assert "request_failed" in text
    for sign in "\x1b\x07\u202e\x9b":
        assert sign not in text, repr(sign)
    assert not [line for line in text.splitlines() if line.startswith("fennelq.web forged")]
