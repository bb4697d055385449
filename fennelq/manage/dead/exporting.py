"""Describes dead jobs as lines of an export, from which they can be restored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import orjson

from fennelq.broker import verbs
from fennelq.broker.talk import Talk, ask_all
from fennelq.broker.verbs.dead import DeadJob
from fennelq.manage.dead.letter import DeadLetter, detailed, letter_of
from fennelq.manage.dead.search import Page, Search
from fennelq.manage.documents import Document, of_letter, plain
from fennelq.model.job import JobInfo
from fennelq.redaction import WITH_SECRETS, Redaction

if TYPE_CHECKING:
    from fennelq.app import App

VERSION: Final = 1
"""The version of the lines."""

RESTORED: Final = (
    "options",
    "lane",
    "tries",
    "created",
    "run",
    "idempotency",
    "max_deliveries",
    "gates",
    "nonce",
    "digest",
    "replays",
    "blank_starts",
    "version",
)
"""The fields of a record that a line contains unchanged, for the import. The others are facts about the death, which
the line has by name, or belong to a job that is not dead."""


def exported(app: App, search: Search, page: Page, *, secrets: bool) -> Talk[list[Document]]:
    """The lines of these dead jobs."""
    known = yield from ask_all(verbs.dead.whole(search.keys, dead.key) for dead in page)
    return [
        _line(app, dead, info, fields, secrets=secrets)
        for dead, (info, fields) in zip(page, known, strict=True)
    ]


def _line(
    app: App, dead: DeadJob, info: JobInfo | None, fields: Mapping[str, bytes], *, secrets: bool
) -> Document:
    """The line of a dead job. When it is not dead any more, it has the facts of its entry only."""
    head = {"v": VERSION, "app": app.namespace}
    if info is None or info.place != f"dlq/{dead.entry}":
        return _as_json({**head, **of_letter(letter_of(dead))})
    letter: DeadLetter = detailed(dead, info)
    redaction = WITH_SECRETS if secrets else app.redaction
    line = {**head, **of_letter(letter, redaction), "arguments": _call_of(info, redaction)}
    if line["redacted"]:
        return _as_json(line)
    record = {name: plain(fields[name]) for name in RESTORED if name in fields}
    return _as_json({**line, "record": record})


def _call_of(info: JobInfo, redaction: Redaction) -> object:
    """The arguments as JSON values, with whole numbers of any size; a text when they are not a call."""
    shown = redaction.call(info.task, info.arguments)
    return plain(info.arguments) if shown is None else shown


def _as_json(line: Document) -> Document:
    arguments = {name: line.pop(name) for name in ("arguments",) if name in line}
    # These are JSON values already, and orjson refuses whole numbers of more than 64 bits.
    return {**orjson.loads(orjson.dumps(line, default=plain)), **arguments}
