"""The former name of `fennelq.worker.processes.process`, for supervisors of an earlier version.

After an upgrade in place, a supervisor that still runs starts its executors by this name. Without this module it could
not replace an executor that crashes or is recycled until the service is restarted.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from fennelq.worker.processes.process import run_and_leave


def config_from(text: str) -> str:
    """The configuration in its present form: only the name of the pipe for signals has changed since."""
    fields: dict[str, Any] = json.loads(text)
    fields["signals"] = fields.pop("signs", -1)
    return json.dumps(fields)


if __name__ == "__main__":
    run_and_leave(config_from(sys.argv[1]))
