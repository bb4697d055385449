"""What PID 1 does with a SIGTERM while it imports an app, for tests: `python -m tests.worker.first_process`."""

from __future__ import annotations

import os
import time
from unittest import mock

from fennelq.worker.processes import pid_one

if __name__ == "__main__":
    with mock.patch.object(os, "getpid", return_value=1):
        pid_one.end_on_sigterm()
    print("importing", flush=True)
    while True:
        time.sleep(60)
