"""The way of an act through the dialogs of `fennelq top`: count, ask, act, and say what was done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from fennelq.broker.trouble import ReplyError
from fennelq.cli.exits import Interrupted
from fennelq.cli.top.acts import Answer, Planned, Question
from fennelq.cli.top.dialogs import CountingDialog, GoingDialog, QuestionDialog
from fennelq.errors import FennelqError

if TYPE_CHECKING:
    from textual.app import App as Screens

    from fennelq.app import App


async def acted(screens: Screens[Any], app: App, plan: Callable[[App], Awaitable[Planned]]) -> str:
    """Count, ask and act; returns a sentence about what was done, which is empty when the answer was no."""
    try:
        planned = await _counted(screens, app, plan)
        if isinstance(planned, str):
            return planned
        answer = await screens.push_screen_wait(QuestionDialog(planned))
        return "" if answer is None else await _done(screens, app, planned, answer)
    except (FennelqError, ReplyError, Interrupted) as how:
        return str(how)


async def _counted(screens: Screens[Any], app: App, plan: Callable[[App], Awaitable[Planned]]) -> Planned:
    counting = asyncio.ensure_future(plan(app))
    dialog = CountingDialog()

    def give_up(_: None) -> None:
        counting.cancel()

    await screens.push_screen(dialog, give_up)
    try:
        return await counting
    except asyncio.CancelledError:
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise
        return "Nothing was changed."
    finally:
        counting.cancel()
        if dialog.is_current:
            await dialog.dismiss()


async def _done(screens: Screens[Any], app: App, question: Question, answer: Answer) -> str:
    dialog = GoingDialog(question.title, question.jobs)
    await screens.push_screen(dialog)
    try:
        sentence = await question.do(app, answer, dialog.going)
    finally:
        if dialog.is_current:
            await dialog.dismiss()
    return ". ".join([sentence, *dialog.going.warnings])
