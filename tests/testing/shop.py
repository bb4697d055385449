"""The app of these tests, and its tasks."""

from __future__ import annotations

import asyncio
import time

from fennelq import App, Rate, RateLimited, RetryPolicy, Snooze, current_job

app = App("shop")
runs: list[str] = []
"""What the tasks have done, in order."""


@app.task(queue="mail", headers={"from": "shop"})
async def welcome(user_id: int, template: str = "hello") -> str:
    runs.append(f"welcome {user_id}")
    return f"sent {template!r} to user {user_id}"


@app.task
async def sign_up(user_id: int) -> None:
    runs.append(f"sign_up {user_id}")
    await welcome.delay(user_id)


@app.task
async def renew(user_id: int) -> None:
    """Sends itself, as a job does that must not run twice at a time."""
    runs.append(f"renew {user_id}")
    await renew.options(job_id=f"{user_id}").delay(user_id)


@app.task(retry=RetryPolicy.fixed(2, delay=60))
async def flaky(failures: int) -> int:
    runs.append(f"flaky {current_job().tries}")
    if current_job().tries <= failures:
        raise ConnectionError("the mail server is away")
    return current_job().tries


@app.task
async def charge(order: int) -> int:
    """Takes its time, and notes whether it has got to its end."""
    runs.append(f"begin {current_job().fence}")
    await asyncio.sleep(0.01)
    runs.append(f"end {current_job().fence}")
    return current_job().fence


@app.task
def resize(name: str) -> str:
    """In a thread."""
    runs.append(f"resize {current_job().fence}")
    time.sleep(0.02)
    return name


@app.task
async def poll() -> None:
    runs.append("poll")
    raise Snooze(60)


@app.task
def report(day: int) -> int:
    """A plain function that sends a job."""
    runs.append(f"report {day}")
    return len(resize.sync.delay(f"{day}.png").id)


@app.task(isolation="process", rate_limit=Rate(key="host"), retries=0)
def download(host: str, refused: bool = False) -> int:
    """In a process of its own: refused by the host in its first run."""
    if refused and current_job().fence == 1:
        raise RateLimited(retry_after=60)
    return current_job().tries


@app.task(isolation="process")
def render(pages: int) -> tuple[int, bool]:
    """In a process of its own: the number of pages, and whether this is the process of the test."""
    return pages, bool(runs)


@app.every(60)
async def clean_up() -> None:
    runs.append("clean_up")
