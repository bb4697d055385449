"""Other libraries, each installed on demand into an environment of its own under ``.bench/venvs``.

One module per peer: its tasks, its worker with results kept and defaults otherwise, and a client whose
``send_many`` is the fastest way the library documents. This module knows only how to install and start them.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from benchmarks.contestant import ROOT, Contestant, Crew
from benchmarks.loops import LoopName

VENVS = ROOT / ".bench" / "venvs"

Command = Callable[[Crew, str, LoopName], list[str]]


def _own_worker(name: str) -> Command:
    """Started by the adapter itself: the library's command line logs every job, or has no such option."""
    return lambda crew, url, loop: ["-m", f"benchmarks.peers.on_{name}", str(crew.concurrency), loop]


def _taskiq_worker(crew: Crew, url: str, loop: LoopName) -> list[str]:
    size = ["--workers", str(crew.processes), "--max-async-tasks", str(crew.concurrency)]
    return ["-m", "taskiq", "worker", "benchmarks.peers.on_taskiq:broker", *size, "--log-level", "WARNING"]


def _dramatiq_worker(crew: Crew, url: str, loop: LoopName) -> list[str]:
    size = ["--processes", str(crew.processes), "--threads", str(crew.concurrency)]
    return ["-m", "dramatiq", "benchmarks.peers.on_dramatiq", *size]


def _peer(name: str, requirements: Sequence[str], command: Command, most_jobs: int) -> Contestant:
    adapter = f"benchmarks.peers.on_{name}"
    return Contestant(name, adapter, command, requirements=(*requirements, "uvloop"), most_jobs=most_jobs)


PEERS: Mapping[str, Contestant] = {
    peer.name: peer
    for peer in (
        _peer("streaq", ["streaq"], _own_worker("streaq"), 10_000),
        _peer("taskiq", ["taskiq", "taskiq-redis"], _taskiq_worker, 10_000),
        _peer("saq", ["saq[redis]", "typing_extensions"], _own_worker("saq"), 10_000),
        _peer("arq", ["arq"], _own_worker("arq"), 2_000),
        _peer("dramatiq", ["dramatiq[redis]"], _dramatiq_worker, 10_000),
    )
}


def installed(name: str) -> Contestant:
    """The peer, with its environment made on first use."""
    home = VENVS / name
    python = home / "bin" / "python"
    done = home / "complete"
    if not done.exists():
        print(f"installing {name} into {home.relative_to(ROOT)}", file=sys.stderr)
        venv.create(home, with_pip=True, clear=True)
        quietly = ["-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([python, *quietly, *PEERS[name].requirements], check=True)
        done.touch()
    return replace(PEERS[name], python=str(python))
