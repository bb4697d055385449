"""`fennelq profile`: shows which code of an executor takes its time, or its memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from fennelq.cli import complete, output
from fennelq.cli.exits import Exit, Interrupted, Problem
from fennelq.cli.options import Json, duration
from fennelq.cli.profile_text import profile_file, show_profile, write_profile
from fennelq.cli.session import Session
from fennelq.errors import ConfigurationError
from fennelq.manage.documents import of_profile
from fennelq.manage.executors.profiling import profiling_of
from fennelq.streams import is_terminal

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.manage.executors.profile import ExecutorProfile

_MOST_NAMED: Final = 5


def _seconds(text: str) -> float:
    """The length of a profile."""
    try:
        return profiling_of(duration(text), memory=False, who="").seconds
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from None


def show(
    session: Session,
    executor: Annotated[
        str,
        typer.Argument(
            metavar="[EXECUTOR]",
            help="Name of an executor, or the beginning of it. Default: the one that runs the most jobs.",
        ),
    ] = "",
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            metavar="TASK",
            help="Only this task: its whole name, or that of its function. Default: all tasks.",
            autocompletion=complete.tasks,
        ),
    ] = None,
    seconds: Annotated[
        Any, typer.Option("--seconds", parser=_seconds, metavar="DURATION", help="How long: 30, 2m.")
    ] = "10",
    path: Annotated[
        Any,
        typer.Option(
            "-o",
            "--output",
            parser=profile_file,
            metavar="FILE",
            help="Write a flame graph (.svg), a file for speedscope (.json) or collapsed stacks (.txt). Default: "
            "no file.",
        ),
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Show what allocates memory and keeps it, instead of time.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show which code of an executor takes its time, and for which task.

    100 times a second, a thread of the executor looks at all its stacks, also while code blocks its event loop. This
    slows it down by a few percent; --memory slows it down much more while it lasts. The profile contains files, lines
    and functions, but no values of variables.
    """
    try:
        with _progress(seconds) as progress:
            profile = session.run(
                lambda app: _profile(app, executor, progress, seconds=seconds, memory=memory)
            )
    except KeyboardInterrupt:
        raise Interrupted("Interrupted; the executor ends the profile within ten seconds.") from None
    if task is not None:
        profile = profile.of_task(task)
    if task is not None and not profile.stacks and profile.is_elsewhere(task):
        raise Problem(
            f'task {task[:200]!r} runs in processes of its own (isolation="process"), which are not profiled: '
            "use `py-spy record --pid` there",
            Exit.NOT_FOUND,
        )
    if not profile.stacks:
        about = "" if task is None else f" of task {task[:200]!r}"
        raise Problem(f"{profile.executor} ran no code{about} within {profile.seconds:g} s", Exit.NOT_FOUND)
    if path is not None:
        write_profile(profile, path)
    if as_json:
        output.document(of_profile(profile))
    else:
        show_profile(profile)
    _note(profile)


async def _profile(app: App, name: str, progress: Callable[[float], None], **how: Any) -> ExecutorProfile:
    if not name:
        living = [one for one in await app.executors.list() if one.alive]
        if not living:
            raise Problem("no executor runs; start a worker with `fennelq worker`", Exit.FAILED)
        name = max(living, key=lambda one: one.running or 0).name
    if not is_terminal(sys.stderr):  # a terminal shows a bar
        output.note(f"Profiling {name} …")
    return await app.executors.profile(name, progress=progress, **how)


@contextmanager
def _progress(seconds: float) -> Generator[Callable[[float], None]]:
    """A bar on a terminal. Its unit is a tenth of a second."""
    if not is_terminal(sys.stderr):
        yield lambda passed: None
        return
    with typer.progressbar(length=round(10 * seconds), label="Profiling", file=sys.stderr) as bar:
        yield lambda passed: bar.update(round(10 * passed) - bar.pos)
        bar.update(max(0, round(10 * seconds) - bar.pos))


def _note(profile: ExecutorProfile) -> None:
    """What the table does not show."""
    if profile.left_out:
        what = "bytes" if profile.memory else "samples"
        output.note(f"{profile.left_out:,} {what} of rare stacks did not fit into the answer.")
    if profile.elsewhere:
        names = ", ".join(profile.elsewhere[:_MOST_NAMED])
        more = (
            f" and {len(profile.elsewhere) - _MOST_NAMED} more"
            if len(profile.elsewhere) > _MOST_NAMED
            else ""
        )
        output.note(f"Not profiled, because they run in processes of their own: {names}{more}.")
    if not profile.memory and profile.samples:
        waited = 100 * profile.idle / profile.samples
        output.note(
            f"{profile.executor}: {profile.samples:,} samples in {profile.seconds:g} s; its event loop waited in "
            f"{waited:.0f} % of them."
        )
