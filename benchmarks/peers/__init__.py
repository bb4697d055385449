"""Other libraries, each installed on demand into an environment of its own under ``.bench/venvs``."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import replace

from benchmarks.contestant import ROOT, Contestant, Crew
from benchmarks.loops import LoopName

VENVS = ROOT / ".bench" / "venvs"


def _saq(crew: Crew, url: str, loop: LoopName) -> list[str]:
    return ["-m", "benchmarks.peers.saq", str(crew.concurrency), loop]


def _arq(crew: Crew, url: str, loop: LoopName) -> list[str]:
    return ["-m", "benchmarks.peers.arq", str(crew.concurrency), loop]


PEERS: Mapping[str, Contestant] = {}


def installed(name: str) -> Contestant:
    """The peer, with its environment made on first use."""
    if name not in PEERS:
        sys.exit(f"no such peer: {name}; known: {', '.join(PEERS)}")
    peer = PEERS[name]
    home = VENVS / name
    python = home / "bin" / "python"
    if not (home / "complete").exists():
        print(f"installing {name} into {home.relative_to(ROOT)}", file=sys.stderr)
        venv.create(home, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *peer.requirements], check=True)
        (home / "complete").touch()
    return replace(peer, python=str(python))
