"""`python -m tests.kit.about …` prints what a process sees of its surroundings, in JSON, and ends with 3."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time


def facts() -> dict[str, object]:
    return {
        "arguments": sys.argv,
        "environment": dict(os.environ),
        "folder": os.getcwd(),  # noqa: PTH109
        "garbage is collected": gc.isenabled(),
        "leads its session": os.getsid(0) == os.getpid(),
        "module": [__name__, __spec__.name if __spec__ else None],
        "parent": os.getppid(),
        "path": sys.path,
        "signals": [
            str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)
        ],
        "streams": [
            (stream.encoding, stream.errors, stream.line_buffering, stream.isatty())
            for stream in (sys.stdin, sys.stdout, sys.stderr)
        ],
        "stdin": sys.stdin.read(),
        "threads": threading.active_count(),
        "time zone": time.tzname,
    }


if __name__ == "__main__":
    print(json.dumps(facts()))
    print("an error", file=sys.stderr)
    raise SystemExit(3)
