"""Changes the arguments of a dead job in an editor, for `dlq edit`."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from fennelq.cli.auditing import Outcome
from fennelq.cli.exits import Exit, Problem
from fennelq.cli.replaying import note_unchecked
from fennelq.errors import UnknownTask
from fennelq.model.named_call import Named, by_name
from fennelq.redaction import unhidden

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.cli.session import Session
    from fennelq.manage.dead.letter import DeadLetter
    from fennelq.manage.jobs import JobAnswer

_LONGEST_NAME: Final = 100
"""Characters of a job id in the name of a file: a whole id would make the name too long for most file systems."""


class Edited(NamedTuple):
    """The arguments of a dead job, before and after a person has changed them in an editor."""

    old: Named
    new: Named | None
    """None when they are unchanged."""
    file: Path
    """It stays until the job is replayed, so that no work is lost."""


def edited(app: App, letter: DeadLetter, *, anyway: bool) -> Edited:
    """Open the arguments of a dead job in an editor, without its secrets."""
    task = app.tasks.get(letter.task)
    if task is None and not anyway:
        raise UnknownTask(letter.task, app.tasks)
    note_unchecked(task is None)
    raw = letter.info.arguments if letter.info else b""
    try:
        old = by_name(raw, task.calls.signature if task else ())
    except ValueError as error:
        raise Problem(f"the arguments of {letter.id} cannot be read: {error}", Exit.FAILED) from None
    shown = app.redaction.named(letter.task, old)
    editor = _editor()
    file = _written(letter, shown)
    _open(editor, file)
    text = file.read_text("utf-8", "replace")
    try:
        new: Any = json.loads(text) if text.strip() else shown
    except (ValueError, RecursionError) as error:
        raise Problem(
            f"this is not JSON: {error}. Nothing was replayed; the text is in {file}", Exit.USAGE
        ) from None
    if not isinstance(new, dict):
        raise Problem(
            f"this is not an object of arguments by name. Nothing was replayed; the text is in {file}",
            Exit.USAGE,
        )
    if new == shown:
        return Edited(old, None, file)
    try:
        return Edited(old, cast("Named", unhidden(new, shown, old)), file)
    except ValueError as error:
        raise Problem(f"{error}. Nothing was replayed; the text is in {file}", Exit.USAGE) from None


def outcome_of_edit(session: Session, task: str, old: Named, new: Named, answer: JobAnswer) -> Outcome:
    """What the record of operations says about an edit: the arguments before and after it, without secrets."""
    before, after = (_in_a_line(session.redaction.named(task, one)) for one in (old, new))
    return Outcome(int(answer.done), answer.text, before, after)


def _in_a_line(shown: Named) -> str:
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":"))


def _written(letter: DeadLetter, shown: Named) -> Path:
    text = json.dumps(shown, indent=2, ensure_ascii=False).encode("utf-8", "replace")
    prefix = f"{letter.id.replace(':', '-')[:_LONGEST_NAME]}-"
    try:
        with NamedTemporaryFile(prefix=prefix, suffix=".json", delete=False) as file:
            file.write(text + b"\n")
    except OSError as error:
        raise Problem(
            f"the file for the editor cannot be written: {error.strerror}. Set TMPDIR to a folder that has room",
            Exit.FAILED,
        ) from None
    return Path(file.name)


def _editor() -> str:
    """The command of the editor."""
    if editor := os.environ.get("VISUAL") or os.environ.get("EDITOR"):
        return editor
    raise Problem("no editor is known: set EDITOR, for example to vi, or use dlq replay --set", Exit.USAGE)


def _open(editor: str, file: Path) -> None:
    try:
        done = subprocess.run([*shlex.split(editor), str(file)], check=False)
    except (OSError, ValueError) as error:
        file.unlink()
        raise Problem(f"the editor {editor[:100]!r} cannot be started: {error}", Exit.USAGE) from None
    if done.returncode:
        raise Problem(
            f"the editor ended with code {done.returncode}: nothing was replayed; the text is in {file}",
            Exit.FAILED,
        )
