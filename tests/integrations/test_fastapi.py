"""The example for FastAPI under uvicorn, with a worker: real processes, requests over HTTP."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from tests.integrations.conftest import Reply, Serve, Web
from tests.kit.proxy import Proxy
from tests.kit.server import Server
from tests.kit.spawn import Process, Spawner
from tests.kit.waiting import eventually

pytestmark = pytest.mark.timeout(120)

WEB = "examples.webapp.main:web"


@pytest.fixture
def web(serve: Serve, redis_url: str) -> Web:
    return serve("uvicorn", WEB, environment={"FENNELQ_REDIS_URL": redis_url})


@pytest.fixture
def worker(spawn: Spawner, redis_url: str) -> Process:
    flags = ("-A", "examples.webapp.tasks:app", "-p", "1")
    worker = spawn("fennelq", "worker", *flags, environment={"FENNELQ_REDIS_URL": redis_url})
    worker.wait_for("worker_started", within=30)
    return worker


def greet(web: Web, user: int, **more: str) -> Reply:
    return web.post_json("/welcome", {"user_id": user, **more})


@pytest.mark.usefixtures("worker")
def test_every_request_gets_the_result_of_its_own_job(web: Web) -> None:
    def ask(user: int) -> Any:
        sent = greet(web, user)
        assert sent.status == 202
        return web.get(f"/jobs/{sent.json['id']}?wait=20").json

    with ThreadPoolExecutor(16) as pool:
        views = [*pool.map(ask, range(48))]
    assert [view["result"] for view in views] == [f"sent 'hello' to user {n}" for n in range(48)]
    assert {view["status"] for view in views} == {"SUCCESS"}


@pytest.mark.usefixtures("worker")
def test_a_job_that_failed_is_an_answer(web: Web) -> None:
    sent = greet(web, 7, template="none")
    view = web.get(f"/jobs/{sent.json['id']}?wait=20")
    assert (view.status, view.json["status"], view.json["result"]) == (200, "DEAD", None)
    assert "unknown template" in view.json["error"]


@pytest.mark.usefixtures("worker")
def test_a_browser_follows_the_progress_of_a_job_and_cancels_another(web: Web) -> None:
    small = web.post_json("/exports", {"pages": 4}).json["id"]
    with web.events(f"/jobs/{small}/events") as events:
        *reports, end = events
    assert end == ("end", {"status": "SUCCESS"})
    assert {name for name, _ in reports} == {"progress"}
    pages = [report["done"] for _, report in reports]
    assert pages == sorted(pages)
    assert reports[-1][1] == {"done": 4, "total": 4, "note": "page 4"}

    large = web.post_json("/exports", {"pages": 9000}).json["id"]
    with web.events(f"/jobs/{large}/events") as events:
        name, report = next(events)
        assert (name, report["total"]) == ("progress", 9000)
    with web.events(f"/jobs/{large}/events") as events:
        next(events)
        assert web.delete(f"/jobs/{large}").json == {"cancelled": True}
        *_, end = events
    assert end == ("end", {"status": "CANCELLED"})
    view = web.get(f"/jobs/{large}?wait=20").json
    assert (view["status"], view["result"]) == ("CANCELLED", None)
    assert "cancelled by the user" in view["error"]
    assert web.get("/jobs/reports:unknown/events").status == 404
    assert web.delete("/jobs/reports:unknown").json == {"cancelled": False}
    # The browser that went away has left no reader behind: the web server stops without waiting for one.
    web.process.term()
    web.process.returncode(10)
    assert "Traceback" not in web.process.text


@pytest.mark.audit(unfinished=True)
def test_a_job_that_waits_for_a_worker_is_looked_at_without_waiting_for_it(web: Web) -> None:
    sent = greet(web, 7)
    view = web.get(f"/jobs/{sent.json['id']}")
    assert (view.status, view.json["status"], view.json["result"]) == (200, "SENT", None)


@pytest.mark.parametrize("job", ["nonsense", "mail:", "mail:a%20b", "a:b:c", "mail:unknown", "other:x"])
def test_an_unknown_or_malformed_id_is_404(web: Web, job: str) -> None:
    reply = web.get(f"/jobs/{job}")
    assert reply.status == 404
    assert "job" in reply.json["detail"]


@pytest.mark.audit(unfinished=True)
def test_a_repeated_request_gets_the_same_job_and_a_different_one_409(web: Web) -> None:
    key = {"Idempotency_Key": "user-7"}
    replies = [web.post_json("/welcome", {"user_id": user}, **key) for user in (7, 7, 8)]
    assert [reply.status for reply in replies] == [202, 202, 409]
    assert replies[0].json == replies[1].json == {"id": "mail:user-7"}
    assert replies[2].json["detail"].startswith("job id 'mail:user-7' already belongs to another call")


@pytest.mark.audit(unfinished=True)
def test_without_redis_it_is_503_and_later_as_before(serve: Serve, server: Server, proxy: Proxy) -> None:
    web = serve("uvicorn", WEB, environment={"FENNELQ_REDIS_URL": proxy.url})
    sent = greet(web, 7)
    proxy.refuse()
    proxy.cut_all()
    for reply in (greet(web, 8), web.get(f"/jobs/{sent.json['id']}")):
        assert (reply.status, reply.headers["Retry-After"]) == (503, "5")
        assert reply.json == {"detail": "try again later"}
    proxy.up()
    assert eventually(lambda: greet(web, 9).status == 202)
    assert web.get(f"/jobs/{sent.json['id']}").json["status"] == "SENT"


def test_a_web_server_that_stops_closes_its_connections(web: Web, server: Server) -> None:
    assert web.get("/jobs/mail:unknown").status == 404
    ours = connections_of(web.process.pid, server)
    assert ours
    web.process.term()
    web.process.returncode(30)
    assert "Traceback" not in web.process.text
    with server.client() as client:
        eventually(lambda: not ours & {one["addr"] for one in client.client_list()})


def connections_of(pid: int, server: Server) -> set[str]:
    """The addresses from which a process is connected to the server."""
    return {
        f"{one.laddr.ip}:{one.laddr.port}"
        for one in psutil.Process(pid).net_connections(kind="tcp")
        if one.raddr and one.raddr.port == server.port
    }
