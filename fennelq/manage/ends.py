"""How a job ended, as JSON, without the code of its task: for the HTTP API and for gRPC."""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json, to_json

from fennelq.model.job import Status
from fennelq.model.outcome import failure_from_wire
from fennelq.waiting.looks import Ended


def of_ended(job_id: str, ended: Ended) -> dict[str, Any]:
    """The status of a job, and its result or its error."""
    end: Any = from_json(ended.envelope) if ended.envelope else {"ok": None}
    if "ok" in end:
        return {"id": job_id, "status": Status.SUCCESS, "result": end["ok"]}
    if "cancelled" in end:
        expired = end["cancelled"] == "expired"
        error = {"type": "JobExpired" if expired else "JobCancelled", "message": end["cancelled"]}
        return {"id": job_id, "status": Status.CANCELLED, "error": error}
    failure, tries = failure_from_wire(to_json(end.get("dead")))
    error = {"type": failure.error_type, "message": failure.message, "tries": tries}
    return {"id": job_id, "status": Status.DEAD, "error": error}
