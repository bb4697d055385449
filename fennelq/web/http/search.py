"""Finds jobs by a filter, acts on all that meet it, and exports them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal

from pydantic import Field
from starlette.responses import Response, StreamingResponse

from fennelq.manage import documents
from fennelq.manage.acting import Act
from fennelq.manage.finding import check_live, read_filter
from fennelq.manage.paging import page_of
from fennelq.model.query import Query as Filter
from fennelq.web.bulk import begin
from fennelq.web.http.call import Answer, Call
from fennelq.web.http.forms import Body, Line, Query
from fennelq.web.http.jobs import without_arguments
from fennelq.web.http.operations import operation_document
from fennelq.web.http.writing import written
from fennelq.web.pages.jobs import checked
from fennelq.web.visit import Forbidden

PAGE = 100


class SearchQuery(Query):
    """What to find."""

    q: str = Field(default="", max_length=4000)
    """A filter, such as `state:dead task:welcome since:2h`."""
    cursor: str = Field(default="", max_length=1000)
    """The `cursor` of the page before."""


async def find_jobs(call: Call) -> Answer:
    """The jobs that meet a filter, about 100 a page."""
    return await found(call, call.asking(SearchQuery))


async def found(call: Call, asked: SearchQuery, also: str = "") -> Answer:
    """A page of a search."""
    query: Filter = await checked(call, f"{also} {asked.q}".strip())
    if query.ids:
        jobs = [info async for info in call.app.jobs.find(str(query), limit=PAGE)]
        return Answer({"jobs": [_shown(call, info) for info in jobs], "cursor": None})
    page = await call.app.client.converse(page_of(call.app, query, asked.cursor, PAGE))
    problem = {"problem": page.problem} if page.problem else {}
    return Answer(
        {"jobs": [_shown(call, info) for info in page.jobs], "cursor": page.cursor or None, **problem}
    )


def _shown(call: Call, info: object) -> object:
    return without_arguments(call, documents.of_job(info, call.redaction))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class ActBody(Body):
    """An act on all jobs that meet a filter."""

    where: Line
    """The filter."""
    reason: Line = "cancelled"
    """Why they are cancelled."""
    limit: int | None = Field(default=None, ge=1)
    """The most jobs; null is all."""
    dry_run: bool = False
    """Only count them, and show some."""


async def cancel_jobs(call: Call) -> Answer:
    """Cancel all jobs that meet a filter. It goes on after the answer: follow the operation."""
    return await _act(call, "cancel", "job cancel")


async def run_jobs(call: Call) -> Answer:
    """Run all jobs that meet a filter and are due later now."""
    if "send" not in call.user.may:
        raise Forbidden(f"{call.user.name} may send some tasks only, and so not run all jobs of a filter.")
    return await _act(call, "run", "job run")


async def _act(call: Call, act: Act, what: str) -> Answer:
    form = call.given(ActBody)
    await checked(call, form.where)
    plan = await call.app.operations.plan(act, form.where)
    if form.dry_run:
        document = documents.of_plan(plan, call.redaction)
        samples = [without_arguments(call, job) for job in document["samples"]]
        return Answer({**document, "samples": samples})
    operation = await begin(call, plan, what, reason=form.reason, limit=form.limit)
    location = f"{call.request.scope.get('root_path', '')}/api/v1/operations/{operation.id}"
    return Answer(operation_document(call, operation), 202, {"Location": location})


class ExportBody(Body):
    """What to export."""

    where: Line
    """The filter."""
    form: Literal["jsonl"] = "jsonl"


async def export_jobs(call: Call) -> Response:
    """All jobs that meet a filter, as JSON lines without secrets."""
    query = await call.app.client.converse(read_filter(call.given(ExportBody).where))
    check_live(query)  # here, because an error after the first bytes of the answer can only cut it off

    async def lines() -> AsyncIterator[bytes]:
        async for info in call.app.jobs.find(str(query), limit=None):
            yield written(documents.of_exported(call.app.name, info, call.redaction)) + b"\n"

    return StreamingResponse(
        lines(), media_type="application/x-ndjson", headers={"Cache-Control": "no-store"}
    )
