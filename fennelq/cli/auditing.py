"""Writes the command that changes something into the record of operations: its name, its words and its outcome."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fennelq.cli.exits import Interrupted
from fennelq.cli.helps import given_words

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fennelq.app import App
    from fennelq.manage.audit_entry import AuditEntry
    from fennelq.manage.jobs import JobAnswer
    from fennelq.redaction import Redaction

_NO_SELECTION: Final = frozenset({"app", "app_dir", "as_json", "yes", "dry_run", "wait", "timeout", "follow"})
"""Parameters that select nothing: how the command finds its app, asks, waits and prints."""
_ARGUMENTS: Final = frozenset({"arguments", "args", "kwargs"})
"""Parameters with the arguments of a task. They may be secret, and are in the record of the job or the schedule."""


class Outcome(NamedTuple):
    """What a command has changed."""

    done: int | None = None
    """How many jobs, schedules or limits."""
    text: str = ""
    """In words."""
    before: str = ""
    after: str = ""


_context: ContextVar[Any] = ContextVar("context", default=None)


@contextmanager
def calling(context: Any) -> Generator[None]:
    """Around a command that changes something: `recorded` takes its words from `context`, that of the command line."""
    token = _context.set(context)
    try:
        yield
    finally:
        _context.reset(token)


async def recorded(
    app: App,
    work: Callable[[App], Awaitable[Any]],
    planned: int | None,
    outcome: Callable[[Any], Outcome],
    warn: Callable[[str], None],
) -> Any:
    """Do the work of the command that runs, between the two lines of its record."""
    from fennelq.manage.audit import begun  # imported here: commands that only look record nothing

    context = _context.get()
    assert context is not None, "a command that changes something declares changes=True"
    what = context.command_path.partition(" ")[2]
    entry = begun(what, _target(context), _filter(context, app.redaction), planned, None, "cli")
    return await in_record(app, entry, work, outcome, warn)


async def in_record(
    app: App,
    entry: AuditEntry,
    work: Callable[[App], Awaitable[Any]],
    outcome: Callable[[Any], Outcome],
    warn: Callable[[str], None],
) -> Any:
    """Do some work between the two lines of its record."""
    from fennelq.manage.audit import AwaitedOperation

    # Not by `app.audit.operation`: when it cannot write, it logs that, and a person at a shell needs a sentence.
    async with AwaitedOperation(app, entry, warn) as operation:
        try:
            result = await work(app)
        except Interrupted as how_far:
            operation.ended(outcome=str(how_far), state="interrupted")
            raise
        changed = outcome(result)
        operation.ended(changed.done, changed.text, before=changed.before, after=changed.after)
    return result


def outcome_of_answers(answers: Sequence[JobAnswer]) -> Outcome:
    """How many jobs were changed, and why others were not."""
    refused = Counter(answer.text for answer in answers if not answer.done)
    return Outcome(
        sum(answer.done for answer in answers), "; ".join(f"{n:,} {text}" for text, n in refused.items())
    )


def _target(context: Any) -> str:
    """The names or ids that it was given."""
    return shlex.join(word for one, words in _given(context) if _is_argument(one) for word in _words(words))


def _filter(context: Any, redaction: Redaction) -> str:
    """The options that it was given. Of `--set password=…`, the value is hidden."""
    options = ((one, words) for one, words in _given(context) if not _is_argument(one))
    return " ".join(_option(one, words, redaction) for one, words in options)


def _given(context: Any) -> Iterable[tuple[Any, Any]]:
    given = given_words(context)
    hidden = _NO_SELECTION | _ARGUMENTS
    return [
        (one, given[one.name])
        for one in context.command.params
        if one.name in given and one.name not in hidden
    ]


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _option(option: Any, value: Any, redaction: Redaction) -> str:
    name: str = max(option.opts, key=len)
    if option.is_flag:
        return name
    return " ".join(option_in_words(name, word, redaction) for word in _words(value))


def option_in_words(name: str, word: str, redaction: Redaction) -> str:
    """An option and its value as the record shows them: without secrets."""
    hidden = _HIDDEN.get(name, _fact)
    return f"{name} {shlex.quote(hidden(word, redaction))}"


def _argument(word: str, redaction: Redaction) -> str:
    name, _, value = word.partition("=")
    return f"{name}={redaction.argument(name, value)}"


def _filter_of_jobs(word: str, redaction: Redaction) -> str:
    return redaction.filter(word)


def _fact(word: str, redaction: Redaction) -> str:
    name, equals, value = word.partition("=")
    return f"{name}={redaction.fact(name, value)}" if equals else str(redaction.fact("", word))


_HIDDEN: Final = {"--set": _argument, "--where": _filter_of_jobs}
"""Options whose values have a form of their own."""


def _words(value: list[Any] | tuple[Any, ...] | object) -> Iterable[str]:
    return map(str, value) if isinstance(value, list | tuple) else [str(value)]  # pyright: ignore[reportUnknownArgumentType]
