"""A worker that adopts orphans as PID 1 of a container does: `python -m tests.worker.orphanage worker …`."""

from __future__ import annotations

import ctypes
import runpy
import subprocess

from fennelq import App

app = App("shop")
_PR_SET_CHILD_SUBREAPER = 36


@app.task
def leave_orphan() -> int:
    """Leaves a process whose parent has ended; returns its pid."""
    script = "sleep 0.05 >/dev/null & echo $!"
    return int(subprocess.run(["/bin/sh", "-c", script], stdout=subprocess.PIPE, check=True).stdout)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    runpy.run_module("fennelq", run_name="__main__")
