"""The replay of a group of dead jobs: what it would do, and the operation that does it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field

from fennelq.errors import InvalidArguments
from fennelq.manage.dead.letter import DeadLetter
from fennelq.manage.dead.new_arguments import Written
from fennelq.manage.dead.plan import ReplayPlan
from fennelq.web import bulk, words
from fennelq.web.bulk import BulkForm, milliseconds, planned
from fennelq.web.pages.group import filters_of, found, where_of
from fennelq.web.visit import Forbidden, Moved, Page, Visit, link

_CHECKED: Final = 1_000
"""The most jobs, and queues, of which the plan asks one by one whether they can go back."""
_QUEUES_CHECKED: Final = 3
_SAMPLES: Final = 5


class ReplayForm(BulkForm):
    """A replay."""

    canary: int | None = Field(default=None, ge=1, le=1000)
    rate: float | None = Field(default=None, ge=0.1, le=100_000)
    set: str = Field(default="", max_length=10_000)
    """New values of arguments, a line for each: `user_id=42`."""


async def ask(visit: Visit) -> Page:
    """Show what a replay would do."""
    look, group = await found(visit)
    where_of(group.fingerprint)
    text = visit.query.get("set", "")
    new, queues = _new_arguments(visit, text), [*look.queues_of_group(group.fingerprint)]
    check = bool(new) or (group.jobs <= _CHECKED and len(queues) <= _QUEUES_CHECKED)
    filters = filters_of(group.fingerprint)
    filters["queue"] = queues if check else queues[:1]
    plan = await visit.app.dlq.plan(
        arguments=new or None,
        anyway=True,
        who=visit.who,
        check=check,
        limit=None if check else _SAMPLES,
        **filters,
    )
    return Page(
        template="replay.html",
        title="Replay",
        section="dead",
        values={
            "group": group,
            "plan": plan,
            "count": plan.count if check else group.jobs,
            "ready": plan.ready if check else group.jobs,
            "checked": check,
            "until": milliseconds(plan.made_at if check else look.at),
            "set": text,
            "samples": _samples(visit, plan),
            "may_edit": visit.can("edit"),
        },
    )


async def begin(visit: Visit) -> Moved:
    """Put the jobs of the plan back."""
    form, fingerprint = visit.given(ReplayForm), visit.names["group"]
    new = _new_arguments(visit, form.set)
    plan = planned("replay", where_of(fingerprint), form)
    anyway = bool(new) and await _is_codeless(visit, fingerprint)
    operation = await bulk.begin(
        visit, plan, "dlq replay", rate=form.rate, canary=form.canary, arguments=new or None, anyway=anyway
    )
    return Moved(link("operations", operation.id), "replaying", form.total)


async def _is_codeless(visit: Visit, fingerprint: str) -> bool:
    """Whether this process does not have the code of the task of a group."""
    group, _ = await (await visit.look()).group(fingerprint)
    return group is not None and group.task not in visit.app.tasks


def _new_arguments(visit: Visit, text: str) -> dict[str, Any]:
    """The lines `user_id=42` as new arguments. Raises Forbidden for a user who may not change arguments."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and not visit.can("edit"):
        raise Forbidden(f"{visit.user.name} may not change arguments.")
    new: dict[str, Any] = {}
    for line in lines:
        name, equals, value = line.partition("=")
        if not equals or not (name.isidentifier() or name.isdecimal()):
            raise InvalidArguments("the group", f"{line[:100]!r} is not name=value: write user_id=42")
        new[name] = Written(value)
    return new


def _samples(visit: Visit, plan: ReplayPlan) -> list[tuple[DeadLetter, str, str]]:
    """Some jobs, with their old and new arguments if they change."""
    if not visit.can("see_arguments"):
        return [(letter, "", "") for letter in plan.samples]
    rows: list[tuple[DeadLetter, str, str]] = []
    for letter in plan.samples:
        old, new = plan.rewritten.get(letter.id, ({}, {}))
        rows.append((letter, _shown(visit, letter.task, old, new), _shown(visit, letter.task, new, old)))
    return rows


def _shown(visit: Visit, task: str, named: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The arguments that differ."""
    shown = visit.redaction.named(task, {name: _plain(one) for name, one in named.items()})
    return ", ".join(
        f"{name}={words.as_json(one)}" for name, one in shown.items() if named[name] != other.get(name)
    )


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Written) else value
