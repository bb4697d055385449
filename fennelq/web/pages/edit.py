"""Change the arguments of a dead job, and put it back."""

from __future__ import annotations

import json
from typing import Any, cast

from pydantic import Field

from fennelq.errors import InvalidArguments
from fennelq.manage.dead.letter import DeadLetter
from fennelq.model.named_call import Named, by_name
from fennelq.redaction import unhidden
from fennelq.web import words
from fennelq.web.table import Form
from fennelq.web.visit import Forbidden, Moved, NotFound, Page, Visit, link


class EditForm(Form):
    """The new arguments."""

    arguments: str = Field(max_length=1 << 20)


async def ask(visit: Visit) -> Page:
    """Show the arguments, without secrets."""
    if not visit.can("see_arguments"):
        raise Forbidden(f"{visit.user.name} may not see arguments.")
    letter, old = await _found(visit)
    shown = visit.redaction.named(letter.task, old)
    return Page(
        template="job_edit.html",
        title="Change arguments",
        section="dead",
        values={"letter": letter, "text": words.as_json(shown, 2), "known": letter.task in visit.app.tasks},
    )


async def save(visit: Visit) -> Moved:
    """Put the job back with the new arguments."""
    if not visit.can("see_arguments"):
        raise Forbidden(f"{visit.user.name} may not see arguments.")
    letter, old = await _found(visit)
    shown = visit.redaction.named(letter.task, old)
    new = _read(letter, visit.given(EditForm).arguments, shown, old)
    anyway = letter.task not in visit.app.tasks
    async with visit.site.recorded(visit, "dlq edit", target=letter.id) as record:
        answer = await visit.app.dlq.edit(letter.id, new, anyway=anyway, who=visit.who)
        before, after = (words.as_json(visit.redaction.named(letter.task, one)) for one in (old, new))
        record.ended(int(answer.done), answer.text, before=before, after=after)
    return Moved(link("jobs", letter.id), "replayed" if answer.done else "late")


def _read(letter: DeadLetter, text: str, shown: Named, old: Named) -> Named:
    try:
        new: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArguments(letter.task, f"this is not JSON: {error}") from None
    if not isinstance(new, dict):
        raise InvalidArguments(letter.task, "this is not an object of arguments by name")
    try:
        return cast("Named", unhidden(new, shown, old))
    except ValueError as error:
        raise InvalidArguments(letter.task, str(error)) from None


async def _found(visit: Visit) -> tuple[DeadLetter, Named]:
    await visit.look()
    letter = await visit.app.dlq.get(visit.names["job"])
    if letter is None or letter.info is None:
        raise NotFound("This job is not dead (any more).")
    task = visit.app.tasks.get(letter.task)
    try:
        return letter, by_name(letter.info.arguments, task.calls.signature if task else ())
    except ValueError as error:
        raise InvalidArguments(letter.task, f"the arguments cannot be read: {error}") from None
