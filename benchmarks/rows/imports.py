"""What ``import fennelq`` adds to the import of its dependencies."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

from benchmarks.arena import Arena, SampleFailed
from benchmarks.contestant import ROOT
from benchmarks.figures import AtMost, Line, Sample
from benchmarks.rows.row import Row

_WHAT_IT_IMPORTS = """
import json, sys
before = set(sys.modules)
import fennelq
brought = [name for name in sys.modules if name not in before]
print(json.dumps([name for name in brought if name.partition(".")[0] != "fennelq"]))
"""

_WHAT_IT_ADDS = """
import importlib, json, sys, time
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except ImportError:
        pass
began = time.perf_counter()
import fennelq
print(json.dumps((time.perf_counter() - began) * 1e3))
"""

_ALL_OF_IT = """
import json, time
began = time.perf_counter()
import fennelq
print(json.dumps((time.perf_counter() - began) * 1e3))
"""


@dataclass(frozen=True)
class Imports(Row):
    """One process lists what fennelq brings in; a fresh one imports just that, then times fennelq itself."""

    name = "import"
    lines = (
        Line("import fennelq, without its dependencies", "own_ms", "ms", AtMost(50), digits=1),
        Line("  with its dependencies", "all_ms", "ms", digits=1),
    )
    with_floor = False

    def measure(self, arena: Arena) -> Sample:
        brought = json.dumps(_run(_WHAT_IT_IMPORTS))
        return Sample({"own_ms": float(_run(_WHAT_IT_ADDS, brought)), "all_ms": float(_run(_ALL_OF_IT))})


def _run(program: str, *arguments: str) -> float:
    command = [sys.executable, "-c", program, *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SampleFailed(ended.stderr[-1500:])
    answer: float = json.loads(ended.stdout)
    return answer
