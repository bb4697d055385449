"""The contract, generated from the document: every operation answers good and hostile requests as it says, never with
500, and every problem is problem+json."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Final, cast, get_type_hints

import httpx
import pytest

from fennelq import App
from fennelq.manage.sending import GivenCall, GivenOptions, read_call
from fennelq.web.http import description, rates
from fennelq.web.http.bodies import value_of
from fennelq.web.http.openapi import openapi, operations_in
from fennelq.web.http.paths import PREFIX
from fennelq.web.http.routes import ROUTES
from fennelq.web.http.table import ANY_USER, Route
from fennelq.web.users import RIGHTS, User
from tests.web.api.kit import JSON, Program, problem_in
from tests.web.kit import by_name

NAMES: Final = {
    "job": "mail:nosuch",
    "queue": "mail",
    "task": "shop:welcome",
    "operation": "0123abcd",
    "schedule": "nightly",
}
HOSTILE_NAMES: Final = (
    "a:{b}",
    "x" * 3000,
    "..",
    "%2F%2F",
    "%00",
    "%FF%FE",
    "%ED%A0%80",
    "fq:{shop}:j",
    "%E2%80%AE",
    "a%0D%0Ab:c",
    "*",
    ":",
    "::::",
)
DEEP = b"[" * 100_000 + b"]" * 100_000
HOSTILE_BODIES: Final[Mapping[str, bytes]] = {
    "empty": b"",
    "null": b"null",
    "a number": b"5",
    "a list": b"[]",
    "a text": b'"x"',
    "nested too deeply": DEEP,
    "nested too deeply in a member": b'{"kwargs":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001,
    "nested as deeply as is read": b'{"task":"shop:welcome","args":[' + b"[" * 190 + b"]" * 190 + b"]}",
    "not UTF-8": b'{"task": "\xff\xfe"}',
    "half a surrogate pair": b'{"task": "\\ud800", "where": "\\ud800"}',
    "a cut text": b'{"task": "x',
    "not a number": b'{"task": NaN}',
    "a huge integer": b'{"task":"shop:welcome","args":[' + b"9" * 5000 + b"]}",
    "an infinite number": b'{"task":"shop:welcome","args":[1e999]}',
    "the same member twice": b'{"task":"a:b","task":"c:d"}',
    "controls": b'{"task": "\\u0000\\u001b[2J", "why": "\\u0000\\u001b[2J", "where": "\\u0007"}',
    "a foreign queue": b'{"task":"shop:welcome","args":[1],"options":{"queue":"other{app}:q"}}',
    "an unknown queue": b'{"task":"shop:welcome","args":[1],"options":{"queue":"nosuch"}}',
    "an unknown task": b'{"task":"no.such:task"}',
    "ten megabytes": b'{"task": "' + b"x" * (10 << 20) + b'"}',
}


@pytest.fixture
async def document(program: Program) -> Mapping[str, Any]:
    """The document, as a client reads it."""
    found: dict[str, Any] = (await program.http.get("/openapi.json")).json()
    return found


def filled(path: str, **names: str) -> str:
    return re.sub(r"{(\w+)}", lambda found: {**NAMES, **names}[found[1]], path)


def values_of(schema: Any, document: Mapping[str, Any], depth: int = 0) -> Any:
    """A value that the schema allows."""
    if "$ref" in schema:
        return values_of(resolved(schema["$ref"], document), document, depth + 1)
    if "anyOf" in schema:
        return values_of(schema["anyOf"][0], document, depth)
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        members: Mapping[str, Any] = schema.get("properties", {})
        return {name: values_of(members[name], document, depth + 1) for name in schema.get("required", [])}
    if kind == "array":
        return [] if depth > 3 else [values_of(schema.get("items", {}), document, depth + 1)]
    if schema.get("format") in ("date", "date-time"):
        return "2026-05-01" if schema["format"] == "date" else "2026-05-01T00:00:00Z"
    return {"string": "shop:welcome", "integer": 1, "number": 1.5, "boolean": True}.get(kind)


def resolved(ref: str, document: Mapping[str, Any]) -> Any:
    found: Any = document
    for part in ref.removeprefix("#/").split("/"):
        found = found[part]
    return found


def refs_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        if isinstance(ref := members.get("$ref"), str):
            yield ref
        for one in members.values():
            yield from refs_in(one)
    elif isinstance(value, list):
        elements = cast("Iterable[Any]", value)
        for one in elements:
            yield from refs_in(one)


def body_schema(operation: Mapping[str, Any]) -> Any:
    return operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")


def is_stream(path: str) -> bool:
    return path.endswith("/events")


# The document


async def test_the_document_is_one_of_openapi_and_complete(document: Mapping[str, Any]) -> None:
    assert document["openapi"] == "3.1.0"
    assert {*refs_in(document)}
    for ref in {*refs_in(document)}:
        assert isinstance(resolved(ref, document), dict), ref
    names = [operation["operationId"] for _, _, operation in operations_in(document)]
    assert len(names) == len({*names})
    for method, path, operation in operations_in(document):
        given = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
        assert given == {*re.findall(r"{(\w+)}", path)}, (method, path)
        assert operation["summary"].endswith("."), (method, path)
    assert {(method, path) for method, path, _ in operations_in(document)} >= {
        (row.method, PREFIX + row.path) for row in ROUTES
    }


async def test_each_task_that_the_user_may_send_has_an_operation_with_its_parameters(app: App) -> None:
    everything = openapi(app, User("all", RIGHTS), ROUTES)["paths"]
    schema = body_schema(everything["/api/v1/jobs/shop:order"]["post"])
    assert schema["required"] == ["lines", "day"]
    assert schema["properties"]["day"] == {"type": "string", "format": "date"}
    assert schema["properties"]["lines"]["items"] == {"$ref": "#/components/schemas/Line"}
    assert schema["additionalProperties"] is False
    some = openapi(app, User("reports", {"send:reports:*"}), ROUTES)["paths"]
    assert [path for path in some if "reports:" in path] == ["/api/v1/jobs/reports:daily"]
    assert not [path for path in some if "shop:" in path]


async def test_a_document_is_made_once_for_all_users_with_the_same_rights(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def counted(of: App, user: User, routes: Any) -> Any:
        made.append(user.name)
        return openapi(of, user, routes)

    monkeypatch.setattr(description, "openapi", counted)
    async with Program(app, auth=by_name) as program:
        for user in ("all", "see", "all", "see"):
            answers = [await program.get(path, user=user) for path in ("/openapi.json", "/reference")]
            assert [answer.status_code for answer in answers] == [200, 200]
        assert made == ["all", "see"]

        @app.task(name="shop:added", queue="mail")
        async def added(_: int) -> None: ...

        found = (await program.get("/openapi.json", user="all")).json()
        assert "/api/v1/jobs/shop:added" in found["paths"]
        assert (
            "/api/v1/jobs/shop:added" not in (await program.get("/openapi.json", user="see")).json()["paths"]
        )


async def test_the_reference_page_has_a_line_of_curl_for_each_operation(
    program: Program, document: Mapping[str, Any]
) -> None:
    page = (await program.get("/reference")).text
    assert page.count("<pre>curl ") == len(operations_in(document))
    assert "-X DELETE" in page


def test_the_body_of_each_line_of_curl_is_one_that_its_operation_takes() -> None:
    for row in ROUTES:
        if row.example:
            raw = row.example.encode()
            assert value_of(row, raw), (row.method, row.path)
            if row.body in (GivenCall, list):
                for given in json.loads(raw).get("jobs", [json.loads(raw)]):
                    read_call(given)


# Good requests


async def test_every_operation_answers_a_good_request_as_the_document_says(
    program: Program, document: Mapping[str, Any]
) -> None:
    for method, path, operation in operations_in(document):
        if is_stream(path):
            continue
        schema = body_schema(operation)
        body = None if schema is None else values_of(schema, document)
        query = "?queue=mail" if path.endswith("/scale") else ""
        answer = await program.http.request(method, filled(path) + query, json=body, headers=JSON)
        described = operation["responses"]
        if str(answer.status_code) in described:
            media = next(iter(described[str(answer.status_code)].get("content", {"": None})))
            assert answer.headers["Content-Type"].startswith(media), (method, path)
        else:
            problem = problem_in(answer)
            assert answer.status_code in (404, 409, 422), (method, path, body, problem)


# Hostile requests


def checked(answer: httpx.Response, where: object) -> None:
    assert answer.status_code < 500, (where, answer.status_code, answer.text[:500])
    if answer.status_code >= 400:
        assert problem_in(answer)["detail"], where
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("body", HOSTILE_BODIES.values(), ids=HOSTILE_BODIES.keys())
async def test_no_operation_fails_on_a_hostile_body(
    program: Program, document: Mapping[str, Any], body: bytes
) -> None:
    for method, path, operation in operations_in(document):
        if body_schema(operation) is not None:
            answer = await program.http.request(method, filled(path), content=body, headers=JSON)
            checked(answer, (method, path))
            if len(body) > 9 << 20:
                assert answer.status_code == 413, (method, path)


@pytest.mark.parametrize("wrong", [5, "x", None, [], {"nosuch": 1}, 1e300, -1, "\x00", 10**40], ids=repr)
async def test_no_operation_fails_on_a_member_of_a_wrong_type(
    program: Program, document: Mapping[str, Any], wrong: Any
) -> None:
    for method, path, operation in operations_in(document):
        schema = body_schema(operation)
        if schema is None:
            continue
        if "$ref" in schema:
            schema = resolved(schema["$ref"], document)
        good = values_of(schema, document)
        for name in (*schema.get("properties", {}), "nosuch"):
            answer = await program.http.request(
                method, filled(path), json={**good, name: wrong}, headers=JSON
            )
            checked(answer, (method, path, name, wrong))


async def test_no_operation_accepts_a_member_that_it_does_not_have(
    program: Program, document: Mapping[str, Any]
) -> None:
    for method, path, operation in operations_in(document):
        schema = body_schema(operation)
        if schema is None or path.endswith((":bulk", ":import")):
            continue
        good = values_of(schema, document)
        answer = await program.http.request(method, filled(path), json={**good, "nosuch_": 1}, headers=JSON)
        assert answer.status_code == 422, (method, path, answer.text)
        assert any("nosuch_" in fault["pointer"] for fault in problem_in(answer)["errors"]), (method, path)


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=lambda name: name[:20])
async def test_no_operation_fails_on_a_hostile_name_in_its_path(
    program: Program, document: Mapping[str, Any], name: str
) -> None:
    for method, path, operation in operations_in(document):
        if "{" in path:
            body: Any = {} if body_schema(operation) is not None else None
            url = re.sub(r"{\w+}", lambda _: name, path)
            answer = await program.http.request(method, url, json=body, headers=JSON)
            checked(answer, (method, path))


@pytest.mark.parametrize(
    "value", ["", "x", "-1", "1e400", "%00", "%FF", "x" * 5000, "NaN", "9" * 400], ids=lambda v: v[:9]
)
async def test_no_operation_fails_on_a_hostile_query(
    program: Program, document: Mapping[str, Any], value: str
) -> None:
    for method, path, operation in operations_in(document):
        names = [one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"]
        for name in (*names, "nosuch"):
            if is_stream(path) or (path.endswith("/result") and value.startswith("9")):
                continue
            answer = await program.http.request(
                method, f"{filled(path)}?{name}={value}", json={}, headers=JSON
            )
            checked(answer, (method, path, name))


async def test_a_body_without_an_end_is_cut_at_the_limit(
    program: Program, document: Mapping[str, Any]
) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1 << 20
            assert sent < 64 << 20, "the body was read far beyond its limit"
            yield b" " * (1 << 20)

    for method, path, operation in operations_in(document):
        if body_schema(operation) is not None:
            sent = 0
            answer = await program.http.request(method, filled(path), content=endless(), headers=JSON)
            assert answer.status_code == 413, (method, path)
            problem_in(answer)


async def test_unknown_paths_and_methods_are_problems(program: Program) -> None:
    assert problem_in(await program.get("/nosuch"))["type"] == "urn:fennelq:not-found"
    answer = await program.call("PUT", "/jobs", {})
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, POST")
    problem_in(answer)


# Every route as every kind of user


async def ask(program: Program, row: Route, user: str | None) -> int:
    body: Any = None if row.method == "GET" else {"jobs": 5}
    answer = await program.call(row.method, filled(row.path), body, user=user)
    if answer.status_code >= 400 and answer.headers["Content-Type"] != "application/json":
        problem_in(answer)
    return answer.status_code


async def test_each_route_is_for_users_with_its_right_only(app: App) -> None:
    async with Program(app, auth=by_name) as program:
        for row in ROUTES:
            public = row.right == ANY_USER
            assert await ask(program, row, None) == 401, row.path
            for right in (*sorted(RIGHTS - {row.right}), "nothing"):
                assert await ask(program, row, right) == (200 if public else 403), (
                    row.method,
                    row.path,
                    right,
                )
    assert await app.audit.list() == []


async def test_each_route_answers_a_user_with_its_right(app: App) -> None:
    async with Program(app, auth=by_name) as program:
        for row in ROUTES:
            for user in ("nothing" if row.right == ANY_USER else row.right, "all"):
                assert await ask(program, row, user) in (200, 404, 409, 422), (row.method, row.path, user)


async def test_a_wrong_password_is_refused_and_the_rate_of_failures_is_bounded(app: App) -> None:
    async with Program(app, auth=by_name) as program:
        statuses = [await ask(program, row, "wrong") for row in ROUTES]
    assert statuses[:10] == [401] * 10
    assert {*statuses[10:]} == {429}


async def test_with_read_only_nothing_is_changed(app: App) -> None:
    async with Program(app, auth=by_name, read_only=True) as program:
        for row in ROUTES:
            if row.changes and row.right != "see_arguments":
                assert await ask(program, row, "all") == 403, (row.method, row.path)


async def test_a_page_of_another_site_does_nothing(program: Program) -> None:
    for headers in (
        {"Sec-Fetch-Site": "cross-site", **JSON},
        {"Origin": "http://evil.example", **JSON},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {},
    ):
        for row in ROUTES:
            if row.method == "POST":
                url = PREFIX + filled(row.path)
                answer = await program.http.post(url, content=b"{}", headers=headers)
                assert answer.status_code == 403, (row.path, headers)
                assert "nothing was done" in problem_in(answer)["detail"]


async def test_a_foreign_host_is_refused(program: Program) -> None:
    answer = await program.http.get("/api/v1/queues", headers={"Host": "evil.example"})
    assert answer.status_code == 403
    problem_in(answer)


async def test_the_dashboard_serves_the_api_too(app: App) -> None:
    from tests.web.kit import Browser

    async with Browser(app, root_path="/tools/jobs") as pages:
        assert (await pages.get("/openapi.json")).json()["openapi"] == "3.1.0"
        answer = await pages.http.post("api/v1/jobs", json={"task": "shop:welcome", "args": [1]})
        assert answer.status_code == 201, answer.text
        assert answer.headers["Location"] == f"/tools/jobs/api/v1/jobs/{answer.json()['id']}"
        assert (await pages.get(f"/api/v1/jobs/{answer.json()['id']}")).json()["task"] == "shop:welcome"


async def test_a_user_makes_so_many_calls_per_second(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(rates, "clock", SimpleNamespace(monotonic=lambda: now[0]))
    async with Program(app, rate=2) as program:
        answers = [await program.get("/jobs/mail:nosuch") for _ in range(6)]
        now[0] += 0.5
        later = [(await program.get("/jobs/mail:nosuch")).status_code for _ in range(2)]
    assert [answer.status_code for answer in answers] == [404] * 4 + [429] * 2
    assert later == [404, 429]
    assert answers[-1].headers["Retry-After"] == "1"
    assert json.loads(answers[-1].content)["type"] == "urn:fennelq:too-many-calls"


HOSTILE_VALUES: Final[tuple[Any, ...]] = (
    1e308,
    1e15,
    -0.0,
    5e-324,
    10**40,
    -(2**63),
    2**63,
    True,
    "",
    "0",
    "\x00",
    "\u202e",
    "x" * 100_000,
    "{a}:b",
    "9999-12-31T23:59:59.999999+00:00",
    "0001-01-01T00:00:00-14:00",
    [[]],
    {"": ""},
    {"a" * 1000: "\x1b[2J"},
    {str(number): "x" for number in range(2000)},
)


@pytest.mark.parametrize("option", get_type_hints(GivenOptions))
async def test_no_option_fails_on_a_hostile_value(program: Program, option: str) -> None:
    for value in HOSTILE_VALUES:
        body = {"task": "shop:welcome", "args": [1], "options": {option: value}}
        checked(await program.post("/jobs", body), (option, value))
        keyed = await program.post("/jobs", body, Idempotency_Key=f"k{HOSTILE_VALUES.index(value)}")
        checked(keyed, (option, value))
        bulk = (await program.post("/jobs:bulk", {"jobs": [body, body]})).json()
        assert all(one["status"] < 500 for one in bulk["answers"]), (option, value, bulk)
        if isinstance(value, str | float | int) and len(str(value)) < 1000:
            answer = await program.http.post(
                f"{PREFIX}/jobs/shop:welcome", params={option: str(value)}, json={"user_id": 1}
            )
            checked(answer, (option, value))
