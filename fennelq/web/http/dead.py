"""Dead jobs: groups of one cause, plan and replay, purge, import."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any, cast

from pydantic import Field

from fennelq.errors import ConfigurationError
from fennelq.manage import documents
from fennelq.manage.dead_letter import ReplayReport
from fennelq.manage.search import Filters
from fennelq.manage.sending import Fault, WrongCall, read_json
from fennelq.redaction import is_array, is_object
from fennelq.web.doing import Ended, begin
from fennelq.web.http.bodies import LINES, media_of
from fennelq.web.http.call import Answer, Call
from fennelq.web.http.forms import Body, Instant
from fennelq.web.http.jobs import without_arguments
from fennelq.web.http.operations import work_document
from fennelq.web.http.search import SearchQuery, found
from fennelq.web.visit import Forbidden


class DeadBody(Body):
    """Which dead jobs."""

    queue: str | None = Field(default=None, max_length=128)
    task: str | None = Field(default=None, max_length=256)
    error: str | None = Field(default=None, max_length=200)
    """The type of the error."""
    fingerprint: str | None = Field(default=None, max_length=40)
    """Of a group."""
    since: Instant | None = None
    until: Instant | None = None
    """Not dead after this moment: the `until` of a plan."""
    ids: list[str] | None = Field(default=None, min_length=1, max_length=1000)

    @property
    def filters(self) -> Filters:
        """Those that are given."""
        names = ("queue", "task", "error", "fingerprint", "since", "until", "ids")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if not given:
            raise ConfigurationError("without a filter, this is about every dead job: give at least `until`")
        return cast("Filters", given)

    @property
    def shown(self) -> str:
        """The filters, for the record of operations."""
        given: Mapping[str, Any] = cast("Mapping[str, Any]", self.filters)
        return " ".join(f"--{name} {value}" for name, value in given.items())[:500]


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
    canary_timeout: float = Field(default=60.0, gt=0, le=86_400)


async def replay_dead(call: Call) -> Answer:
    """Put dead jobs back. It goes on after the answer: follow the operation."""
    form = call.given(ReplayDeadBody)
    _check_edit(call, form.arguments)
    filters = form.filters
    total = await call.app.dlq.count(**filters)

    def work(progress: Any) -> Any:
        return call.app.dlq.replay(
            rate=form.rate,
            canary=form.canary,
            canary_timeout=form.canary_timeout,
            arguments=form.arguments,
            anyway=form.arguments is not None,
            who=call.who,
            progress=progress,
            **filters,
        )

    return _begun(call, begin(call, "dlq replay", form.shown, total, work, _replayed))


async def purge_dead(call: Call) -> Answer:
    """Remove dead jobs for good. It goes on after the answer: follow the operation."""
    form = call.given(DeadBody)
    filters = form.filters
    total = await call.app.dlq.count(**filters)
    doing = begin(
        call,
        "dlq purge",
        form.shown,
        total,
        lambda progress: call.app.dlq.purge(progress=progress, **filters),
        lambda removed: (removed, f"{removed:,} removed"),
    )
    return _begun(call, doing)


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


def _begun(call: Call, doing: Any) -> Answer:
    name = call.office.note(doing)
    location = f"{call.request.scope.get('root_path', '')}/api/v1/operations/{name}"
    return Answer(work_document(name, doing), 202, {"Location": location})


def _letter(call: Call, letter: Mapping[str, Any]) -> dict[str, Any]:
    shown = without_arguments(call, letter)
    if call.can("see_arguments"):
        return shown
    return {name: value for name, value in shown.items() if not name.endswith("_arguments")}


def _replayed(report: ReplayReport) -> Ended:
    left = report.key_taken + report.broken + report.skipped + report.gone
    stopped = f"; stopped: {report.stopped}" if report.stopped else ""
    return report.replayed, f"{report.replayed:,} replayed; {left:,} could not go back{stopped}"
