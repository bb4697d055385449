"""The jobs of the example web app, run by `fennelq worker -A examples.webapp.tasks:app`."""

import asyncio

from fennelq import App, Reject, current_job

# When Redis is away, a request waits for at most two seconds. The default is ten.
app = App("webapp", enqueue_timeout=2)


@app.task(queue="mail", retries=5, timeout=30)
async def welcome(user_id: int, template: str = "hello") -> str:
    """Greet a new user by mail."""
    await asyncio.sleep(0.1)  # stands for a mail server
    if template == "none":
        raise Reject(f"unknown template {template!r}")
    return f"sent {template!r} to user {user_id}"


@app.task(queue="reports", retries=0)
async def export(pages: int) -> str:
    """Write a long report, and report how far it has come."""
    for page in range(1, pages + 1):
        await asyncio.sleep(0.1)  # stands for the work; here a cancel ends it
        await current_job().progress(page, pages, f"page {page}")
    return f"{pages} pages"
