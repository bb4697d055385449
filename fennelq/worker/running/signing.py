"""Gives each failure the fingerprint of its cause. It is made in the process that has the traceback."""

from __future__ import annotations

from typing import Any

from fennelq import log
from fennelq.app import App
from fennelq.model.fingerprint import fingerprint_of, fingerprint_of_text, masked, place_of_error
from fennelq.model.job import JobFailure
from fennelq.model.outcome import trace_of_task

_logger = log.get("fennelq.worker")


class Signer:
    """Makes the fingerprints of an app."""

    def __init__(self, app: App) -> None:
        self._own = app.fingerprint
        self._has_complained = False

    def signed(self, failure: JobFailure, task: str, error: BaseException) -> JobFailure:
        """The failure with its fingerprint. One that another process has signed stays as it is."""
        if failure.fingerprint:
            return failure
        return failure._replace(fingerprint=self._chosen(task, error) or _usual(failure, task, error))

    def _chosen(self, task: str, error: BaseException) -> str | None:
        """The fingerprint that the function of the app chooses."""
        if self._own is None:
            return None
        try:
            text: Any = self._own(task, error)
            if text is None:
                return None
            if isinstance(text, str) and text:
                return fingerprint_of_text(text)
            self._complain(f"it returned {text!r:.100}, not a text")
        except BaseException as broken:  # the user's function may even raise SystemExit
            self._complain(f"it raised {type(broken).__name__}")
        return None

    def _complain(self, why: str) -> None:
        if not self._has_complained:
            self._has_complained = True
            _logger.warning("fingerprint_failed", why=why, doing="the usual fingerprint is used")


def _usual(failure: JobFailure, task: str, error: BaseException) -> str:
    trace = trace_of_task(error) if failure.traceback else None
    place = masked(failure.message) if trace is None else place_of_error(trace)
    return fingerprint_of(failure.reason, task, failure.error_type, place)
