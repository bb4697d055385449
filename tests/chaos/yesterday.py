"""The app as it was before the last deploy: it does not know most of the tasks."""

from __future__ import annotations

from fennelq import App
from tests.chaos import jobs

app = App(jobs.NAME)
app.task(name=f"{jobs.__name__}:in_thread")(jobs.in_thread)
