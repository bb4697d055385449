"""The OpenAPI 3.1 document of the table, for one user: it has an operation for each task that the user may send."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NotRequired

from pydantic import BaseModel, TypeAdapter
from typing_extensions import TypedDict

from fennelq import __version__
from fennelq.web.http.bodies import LINES
from fennelq.web.http.bulk import MOST_JOBS
from fennelq.web.http.paths import PREFIX
from fennelq.web.http.problems import MEDIA
from fennelq.web.http.sending import SendQuery
from fennelq.web.http.table import ANY_USER, Route
from fennelq.web.users import MEANINGS, User

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.task import AnyTask

_REF: Final = "#/components/schemas/{model}"
Schema = dict[str, Any]


class Sent(TypedDict):
    """A job that was sent."""

    id: str
    deduplicated: bool


class Fault(TypedDict):
    """One wrong value: where it is, as a JSON pointer, and why it is wrong."""

    pointer: str
    detail: str


class Problem(TypedDict):
    """Why a request could not be answered, and what to do (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    errors: NotRequired[list[Fault]]
    job: NotRequired[str]
    repeat_with: NotRequired[list[dict[str, str]]]


class BulkAnswer(TypedDict):
    """The answer to one call: the job that was sent, or the problem."""

    status: int
    id: NotRequired[str]
    deduplicated: NotRequired[bool]
    problem: NotRequired[Problem]


class Bulk(TypedDict):
    """The answers to many calls, in their order."""

    created: int
    answers: list[BulkAnswer]


class JobError(TypedDict):
    """Why a job ended without a result."""

    type: str
    message: str
    tries: NotRequired[int]


class Result(TypedDict):
    """How a job ended, or the status of one that goes on."""

    id: str
    status: str
    result: NotRequired[Any]
    error: NotRequired[JobError]


class JobAnswer(TypedDict):
    """What was done about a job."""

    id: str
    done: bool
    answer: str


class Operation(TypedDict, total=False):
    """An operation on many jobs. Further members tell who began it and what it is about."""

    id: str
    act: str
    state: str
    total: int
    done: int


class Job(TypedDict, total=False):
    """Everything known about a job. Later versions add members."""

    id: str
    task: str
    queue: str
    status: str
    story: dict[str, Any]


class Scale(TypedDict):
    """The figures of a scaler."""

    waiting: int
    running: int
    backlog: int
    oldest_seconds: float
    desired: int


_ANSWERS: Final = {
    kind.__name__: kind for kind in (Sent, Problem, Bulk, Result, JobAnswer, Operation, Job, Scale)
}


def openapi(app: App, user: User, routes: Sequence[Route]) -> Schema:
    """The document for this user."""
    return Document(app, user).of(routes)


class Document:
    """Collects the paths and the schemas."""

    def __init__(self, app: App, user: User) -> None:
        self._app, self._user = app, user
        self._schemas: dict[str, Schema] = {}
        self._names: set[str] = set()

    def of(self, routes: Sequence[Route]) -> Schema:
        """The document."""
        paths: dict[str, Any] = {}
        for route in routes:
            paths.setdefault(PREFIX + route.path, {})[route.method.lower()] = self._operation(route)
        for name in sorted(self._app.tasks):
            if self._user.can_send(name):
                paths[f"{PREFIX}/jobs/{name}"] = {"post": self._task(self._app.tasks[name])}
        for name, kind in _ANSWERS.items():
            self._schema(kind)
            self._schemas.setdefault(name, {"type": "object"})
        return {
            "openapi": "3.1.0",
            "info": {
                "title": f"Jobs of {self._app.namespace}",
                "version": __version__,
                "description": "Send, follow and operate jobs of fennelq.",
            },
            "paths": paths,
            "components": {
                "schemas": dict(sorted(self._schemas.items())),
                "securitySchemes": {
                    "token": {"type": "http", "scheme": "bearer"},
                    "password": {"type": "http", "scheme": "basic"},
                },
            },
            "security": [{"token": []}, {"password": []}],
        }

    def _operation(self, route: Route) -> Schema:
        right = "any user" if route.right == ANY_USER else f"`{route.right}` ({MEANINGS[route.right]})"
        found: Schema = {
            "operationId": self._name(route),
            "summary": route.summary,
            "description": f"Right: {right}.",
            "parameters": [*_in_path(route.path), *self._in_query(route.query), *_headers(route)],
            "responses": self._responses(route),
        }
        if not found["parameters"]:
            del found["parameters"]
        if route.body is not None:
            found["requestBody"] = self._body(route)
        return found

    def _name(self, route: Route) -> str:
        words = route.name.split("_")
        name = words[0] + "".join(word.capitalize() for word in words[1:])
        if name in self._names:
            name += f"By{route.method.capitalize()}"
        self._names.add(name)
        return name

    def _in_query(self, model: type[BaseModel] | None) -> list[Schema]:
        if model is None:
            return []
        schema = self._hoisted(model.model_json_schema(ref_template=_REF))
        required = schema.get("required", [])
        return [
            {
                "name": name,
                "in": "query",
                "required": name in required,
                "schema": {key: value for key, value in one.items() if key != "description"},
                **({"description": one["description"]} if "description" in one else {}),
            }
            for name, one in schema["properties"].items()
        ]

    def _body(self, route: Route) -> Schema:
        if route.body is list:
            member = "jobs" if route.name == "send_jobs" else "lines"
            item: Schema = (
                {"$ref": _REF.format(model="GivenCall")} if member == "jobs" else {"type": "object"}
            )
            items = {"type": "array", "items": item} | ({"maxItems": MOST_JOBS} if member == "jobs" else {})
            schema: Schema = {"type": "object", "required": [member], "properties": {member: items}}
            content = {"application/json": {"schema": schema}, LINES[0]: {"schema": {"type": "string"}}}
            return {"required": True, "content": content}
        schema = {"type": "object"} if route.body is dict else self._schema(route.body)
        return {"required": bool(route.example), "content": {"application/json": {"schema": schema}}}

    def _responses(self, route: Route) -> Schema:
        schema: Schema = {"$ref": _REF.format(model=route.returns)} if route.returns else {"type": "object"}
        if route.media != "application/json":
            schema = {"type": "string"}
        found: Schema = {}
        for status, meaning in route.statuses.items():
            found[str(status)] = {"description": meaning}
            if status != 204:
                found[str(status)]["content"] = {route.media: {"schema": schema}}
        problem = {MEDIA: {"schema": {"$ref": _REF.format(model="Problem")}}}
        found["default"] = {"description": "A problem, and what to do.", "content": problem}
        return found

    def _task(self, task: AnyTask) -> Schema:
        doc = inspect.getdoc(task.function) or ""
        sent = {"application/json": {"schema": {"$ref": _REF.format(model="Sent")}}}
        problem = {MEDIA: {"schema": {"$ref": _REF.format(model="Problem")}}}
        return {
            "operationId": "send_" + re.sub(r"\W+", "_", task.name),
            "summary": doc.partition("\n")[0] or f"Send a call of {task.name}.",
            "description": doc,
            "parameters": [*self._in_query(SendQuery), _KEY],
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": self._arguments(task)}},
            },
            "responses": {
                "200": {"description": "No new job: an earlier call has created this one.", "content": sent},
                "201": {"description": "The job was created.", "content": sent},
                "default": {"description": "A problem, and what to do.", "content": problem},
            },
        }

    def _arguments(self, task: AnyTask) -> Schema:
        properties: dict[str, Schema] = {}
        required: list[str] = []
        others = False
        for one in task.calls.signature:
            if one.kind is one.VAR_KEYWORD:
                others = True
            elif one.kind is not one.VAR_POSITIONAL:
                properties[one.name] = self._schema(task.calls.hints[one.name])
                if one.default is one.empty:
                    required.append(one.name)
        return {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": others,
        }

    def _schema(self, kind: Any) -> Schema:
        """The schema of a type. A type without one, such as a class with a validator of its own, is any value."""
        try:
            made = TypeAdapter(kind).json_schema(ref_template=_REF)
        except Exception:
            return {}
        schema = self._hoisted(made)
        title = schema.get("title")
        if isinstance(kind, type) and schema.get("type") == "object" and title == kind.__name__:
            self._schemas[kind.__name__] = schema
            return {"$ref": _REF.format(model=kind.__name__)}
        return schema

    def _hoisted(self, schema: Schema) -> Schema:
        """The schema without its definitions, which become those of the document."""
        self._schemas.update(schema.pop("$defs", {}))
        return schema


_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "maxLength": 257},
    "description": "A repeated call with the same key makes no second job.",
}


def _headers(route: Route) -> list[Schema]:
    return [_KEY] if route.returns in ("Sent", "Bulk") and "{schedule}" not in route.path else []


def _in_path(path: str) -> list[Schema]:
    names: Sequence[str] = re.findall(r"{(\w+)}", path)
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def operations_in(document: Mapping[str, Any]) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Method, path and description of each operation of a document."""
    return [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
