"""The jobs of the example web app, run by `fennelq worker -A examples.webapp.tasks:app`."""

import asyncio

from fennelq import App, Reject

# A request waits for at most two seconds when Redis is away. The default is ten.
app = App("webapp", enqueue_timeout=2)


@app.task(queue="mail", retries=5, timeout=30)
async def welcome(user_id: int, template: str = "hello") -> str:
    """Greet a new user by mail."""
    await asyncio.sleep(0.1)  # talks to a mail server
    if template == "none":
        raise Reject("no template has this name")
    return f"sent {template!r} to user {user_id}"
