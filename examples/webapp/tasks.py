"""The jobs of the example web app, run by `fennelq worker -A examples.webapp.tasks:app`."""

from __future__ import annotations

import random

import anyio

from fennelq import App

app = App("webapp")


class MailServerBusy(Exception):
    """What a real mail server answers now and then; the task's retries take care of it."""


@app.task(queue="mail", retries=5, timeout=30)
async def welcome(user_id: int, template: str = "hello") -> str:
    """Greet a new user by mail; one attempt in five meets a busy mail server and is made again."""
    await anyio.sleep(0.5)
    if random.random() < 0.2:
        raise MailServerBusy(f"no connection left for user {user_id}")
    return f"sent {template!r} to user {user_id}"
