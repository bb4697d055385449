"""Dead jobs: groups of one cause, plan and replay, purge, import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any, cast

from pydantic import Field

from fennelq.errors import InvalidFilter
from fennelq.manage import documents
from fennelq.manage.acting import Act, narrowed
from fennelq.manage.canary import CANARY_TIMEOUT
from fennelq.manage.dead.search import Filters, check_cause, named
from fennelq.manage.finding import read_filter
from fennelq.manage.operations import OperationInfo, OperationPlan
from fennelq.manage.sending import Fault, WrongCall, read_json
from fennelq.manage.server import now
from fennelq.model.query import Query, State, Term, moment_text
from fennelq.model.units import epoch_ms
from fennelq.redaction import is_array, is_object
from fennelq.web.bulk import begin
from fennelq.web.http.bodies import LINES, media_of
from fennelq.web.http.call import Answer, Call
from fennelq.web.http.forms import Body, Instant
from fennelq.web.http.jobs import without_arguments
from fennelq.web.http.operations import operation_document
from fennelq.web.http.search import SearchQuery, found
from fennelq.web.visit import Forbidden


class DeadBody(Body):
    """Which dead jobs."""

    queue: str | None = Field(default=None, min_length=1, max_length=128)
    task: str | None = Field(default=None, min_length=1, max_length=256)
    error: str | None = Field(default=None, min_length=1, max_length=200)
    """The type of the error."""
    fingerprint: str | None = Field(default=None, min_length=1, max_length=40)
    """Of a group."""
    since: Instant | None = None
    until: Instant | None = None
    """Not dead after this moment: the `until` of a plan."""
    ids: list[str] | None = Field(default=None, min_length=1, max_length=1000)

    @property
    def filters(self) -> Filters:
        """Those that are given. Raises WrongCall without any, and for one that stands for jobs of many causes."""
        names = ("queue", "task", "error", "fingerprint", "since", "until", "ids")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if not given:
            raise WrongCall(
                [Fault("", "without a filter, this is about every dead job: give at least `until`")]
            )
        filters = cast("Filters", given)
        try:
            check_cause(filters)
        except InvalidFilter as wrong:
            raise WrongCall([Fault("/fingerprint", str(wrong))]) from wrong
        return filters

    @property
    def where(self) -> str:
        """The same as the filter of an operation. Its `until` is the bound of the operation."""
        words = {"queue": self.queue, "task": self.task, "error": self.error, "fp": self.fingerprint}
        words["since"] = None if self.since is None else moment_text(epoch_ms(self.since))
        terms = [Term(word, value) for word, value in words.items() if value is not None]
        return str(Query.of([Term("state", State.DEAD), *terms]))


async def dead_groups(call: Call) -> Answer:
    """Dead jobs by cause, the largest group first."""
    return Answer({"groups": [documents.of_group(group) for group in await call.app.dlq.groups()]})


async def list_dead(call: Call) -> Answer:
    """The dead jobs that meet a filter, about 100 a page."""
    return await found(call, call.asking(SearchQuery), "state:dead")


class PlanBody(DeadBody):
    """What a replay would be about."""

    arguments: dict[str, Any] | None = None
    """New values of some arguments, by name."""


async def plan_replay(call: Call) -> Answer:
    """What a replay would do: how many jobs, which cannot go back, some samples. `plan` is the body that does it."""
    form = call.given(PlanBody)
    _check_edit(call, form.arguments)
    plan = await call.app.dlq.plan(arguments=form.arguments, anyway=True, **form.filters)
    document = documents.of_replay_plan(plan, call.redaction)
    samples = [_letter(call, letter) for letter in document["samples"]]
    until = form.until or plan.made_at
    again = {**form.model_dump(exclude_none=True), "until": until}
    return Answer({**document, "samples": samples, "plan": again})


class ReplayDeadBody(PlanBody):
    """A replay."""

    rate: float | None = Field(default=None, gt=0, le=1_000_000)
    """Jobs per second."""
    canary: int | None = Field(default=None, ge=1, le=1000)
    """So many first; the others stay dead if one of these dies as before."""
    canary_timeout: float = Field(default=CANARY_TIMEOUT, gt=0, le=86_400)


async def replay_dead(call: Call) -> Answer:
    """Put dead jobs back. It goes on after the answer: follow the operation. Jobs that are named by their ids go back
    before the answer."""
    form = call.given(ReplayDeadBody)
    _check_edit(call, form.arguments)
    if form.ids:
        return await _replay_named(call, form)
    plan = await _plan(call, form, "replay")
    operation = await begin(
        call,
        plan,
        "dlq replay",
        rate=form.rate,
        canary=form.canary,
        canary_timeout=form.canary_timeout,
        arguments=form.arguments,
        anyway=form.arguments is not None and await _is_codeless(call, form),
    )
    return _begun(call, operation)


async def purge_dead(call: Call) -> Answer:
    """Remove dead jobs for good. It goes on after the answer: follow the operation. Jobs that are named by their ids
    are removed before the answer."""
    form = call.given(DeadBody)
    if form.ids is None:
        return _begun(call, await begin(call, await _plan(call, form, "purge"), "dlq purge"))
    async with call.site.recorded(
        call, "dlq purge", target=_named(form.ids), planned=len(form.ids)
    ) as record:
        removed = await call.app.dlq.purge(**form.filters)
        record.ended(removed)
    return Answer({"removed": removed})


async def _replay_named(call: Call, form: ReplayDeadBody) -> Answer:
    faults = [
        Fault(f"/{name}", "jobs that are named by `ids` go back at once") for name in ("rate", "canary")
    ]
    if wrong := [fault for fault in faults if getattr(form, fault.pointer[1:]) is not None]:
        raise WrongCall(wrong)
    ids = form.ids or []
    async with call.site.recorded(call, "dlq replay", target=_named(ids), planned=len(ids)) as record:
        report = await call.app.dlq.replay(
            arguments=form.arguments, anyway=not call.app.tasks, who=call.who, **form.filters
        )
        record.ended(report.replayed)
    return Answer(documents.of_report(report))


async def _plan(call: Call, form: DeadBody, act: Act) -> OperationPlan:
    """The jobs that are dead now, or were at the `until` of the body."""
    filters, at = form.filters, await call.app.client.converse(now())
    where = narrowed(act, await call.app.client.converse(read_filter(form.where)))
    total = await call.app.dlq.count(**filters)
    until = at if form.until is None else min(at, form.until)
    return OperationPlan(act=act, where=str(where), until=until, total=total, samples=[])


async def _is_codeless(call: Call, form: DeadBody) -> bool:
    """Whether this process does not have the code of the task of these jobs."""
    tasks = call.app.tasks
    if form.task is not None:
        return not any(named(name, form.task, ":") for name in tasks)
    if form.fingerprint is None:
        return not tasks
    groups = await call.app.dlq.groups()
    return any(one.fingerprint == form.fingerprint.lower() and one.task not in tasks for one in groups)


def _named(ids: Sequence[str]) -> str:
    return " ".join(ids)[:500]


async def import_dead(call: Call) -> Answer:
    """Send the jobs of an export, with their ids: JSON lines, or `{"lines": […]}`."""
    if media_of(call.request) in LINES:
        lines: list[Any] = [*filter(bytes.strip, BytesIO(call.body))]
    else:
        body = read_json(call.body)
        given = body.get("lines") if is_object(body) else None
        if not is_array(given) or not all(map(is_object, given)):
            raise WrongCall([Fault("/lines", "send the lines of an export, as a list of objects")])
        lines = given
    async with call.site.recorded(call, "dlq import", planned=len(lines)) as record:
        report = await call.app.dlq.import_(lines)
        record.ended(report.imported, f"{report.known:,} were known, {report.key_taken:,} keys were taken")
    return Answer(documents.of_import(report))


def _check_edit(call: Call, arguments: object) -> None:
    if arguments is not None and not call.can("edit"):
        raise Forbidden(f"{call.user.name} may not change arguments: its rights need edit.")


def _begun(call: Call, operation: OperationInfo) -> Answer:
    location = f"{call.request.scope.get('root_path', '')}/api/v1/operations/{operation.id}"
    return Answer(operation_document(call, operation), 202, {"Location": location})


def _letter(call: Call, letter: Mapping[str, Any]) -> dict[str, Any]:
    shown = without_arguments(call, letter)
    if call.can("see_arguments"):
        return shown
    return {name: value for name, value in shown.items() if not name.endswith("_arguments")}
