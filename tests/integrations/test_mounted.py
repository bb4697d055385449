"""The dashboard and the HTTP API inside of applications of four frameworks, under uvicorn: pages, links, forms and
calls below a prefix."""

from __future__ import annotations

import re

import httpx
import pytest

from tests.integrations.conftest import Serve

pytestmark = pytest.mark.timeout(120)

SIGNED_IN = {"X-Forwarded-User": "ada", "Host": "jobs.example.com"}


@pytest.mark.parametrize("framework", ["fastapi", "starlette", "litestar", "django"])
def test_the_dashboard_is_below_a_prefix_of_the_application(
    framework: str, serve: Serve, redis_url: str
) -> None:
    environment = {"FENNELQ_REDIS_URL": redis_url}
    web = serve("uvicorn", f"examples.mounted.in_{framework}:web", environment=environment)
    with httpx.Client(base_url=web.url, headers=SIGNED_IN) as http:
        own = http.get("/")
        assert "the shop" in own.text
        assert "Content-Security-Policy" not in own.headers
        page = http.get("/jobs/queues/mail")
        assert page.status_code == 200, page.text
        assert "ada, may do everything" in page.text
        targets = {page.url.join(href) for href in re.findall(r'(?:href|src)="([^"#]+)"', page.text)}
        assert {str(target.path).startswith("/jobs/") for target in targets} == {True}
        assert {http.get(target).status_code for target in targets} == {200}
        document = http.get("/jobs/openapi.json").json()
        (path,) = (path for path in document["paths"] if path.endswith(":welcome"))
        sent = http.post(f"/jobs{path}", json={"user_id": 42})
        assert sent.status_code == 201, sent.text
        assert sent.headers["Location"] == f"/jobs/api/v1/jobs/{sent.json()['id']}"
        assert http.get(sent.headers["Location"]).json()["status"] == "SENT"
        form = {"why": "below a prefix"}
        assert http.post("/jobs/queues/mail/pause", data=form).status_code == 403
        done = http.post("/jobs/queues/mail/pause", data=form, headers={"Origin": "http://jobs.example.com"})
        assert done.status_code == 303, done.text
        after = http.get(done.url.join(done.headers["Location"]))
        assert "“below a prefix”" in after.text
        assert after.headers["Content-Security-Policy"].startswith("default-src 'none'")
        with http.stream("GET", "/jobs/live?view=/queues/mail") as events:
            assert (
                next(line for line in events.iter_lines() if line.startswith("event:")) == "event: fragment"
            )
        assert http.get("/jobs/", headers={"X-Forwarded-User": ""}).status_code == 401
        assert http.get("/jobs", follow_redirects=False).headers.get("Location", "").endswith("jobs/")


@pytest.mark.parametrize("framework", ["fastapi", "starlette", "litestar", "django"])
def test_the_api_alone_is_below_a_prefix_of_the_application(
    framework: str, serve: Serve, redis_url: str
) -> None:
    environment = {"FENNELQ_REDIS_URL": redis_url}
    web = serve("uvicorn", f"examples.mounted.in_{framework}:web", environment=environment)
    with httpx.Client(base_url=web.url, headers=SIGNED_IN, timeout=30) as http:
        assert "the shop" in http.get("/").text
        document = http.get("/programs/openapi.json").json()
        (path,) = (path for path in document["paths"] if path.endswith(":welcome"))
        sent = http.post(f"/programs{path}", json={"user_id": 42}, headers={"Idempotency-Key": "order-42"})
        assert (sent.status_code, sent.headers["Location"]) == (
            201,
            f"/programs/api/v1/jobs/{sent.json()['id']}",
        )
        assert http.get(sent.headers["Location"]).json()["status"] == "SENT"
        assert http.get(sent.headers["Location"].replace(":", "%3A")).json()["task"].endswith(":welcome")
        again = http.post(f"/programs{path}", json={"user_id": 42}, headers={"Idempotency-Key": "order-42"})
        assert (again.status_code, again.json()["deduplicated"]) == (200, True)
        assert "fennelq_queue_jobs" in http.get("/programs/metrics").text
        with http.stream("GET", f"{sent.headers['Location']}/events") as events:
            assert next(events.iter_lines()) == "event: status"
        assert http.delete(sent.headers["Location"]).json()["answer"] == "cancelled"
        problem = http.get("/programs/queues")
        assert (problem.status_code, problem.headers["Content-Type"]) == (404, "application/problem+json")
        assert http.get("/programs/api/v1/queues", headers={"X-Forwarded-User": ""}).status_code == 401
