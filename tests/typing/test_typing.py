"""What users write type-checks, and what must not, does not: under mypy --strict and under basedpyright, strict."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
GOOD, BAD = "good.py", "bad.py"

Findings = dict[str, dict[int, str]]
"""File → line → the messages about it."""


def mypy(folder: Path) -> Findings:
    """The messages of mypy, run as a user runs it: without this project's configuration."""
    given = _run(
        *("mypy", "--strict", "--output=json", "--config-file=", "--follow-imports=silent"),
        *("--warn-unreachable", "--cache-dir", ROOT / ".mypy_cache" / "users", GOOD, BAD),
        folder=folder,
    )
    findings: Findings = {}
    for report in map(json.loads, given.splitlines()):
        if report["severity"] == "error":
            findings.setdefault(report["file"], {})[report["line"]] = (
                f"{report['message']} [{report['code']}]"
            )
    return findings


def pyright(folder: Path) -> Findings:
    """The messages of basedpyright in strict mode."""
    settings: dict[str, object] = {
        "typeCheckingMode": "strict",
        "extraPaths": [str(ROOT)],
        "include": [GOOD, BAD],
    }
    # What is written down only to have a type is of no use to the program, and these rules report it.
    settings |= dict.fromkeys(("reportUnusedExpression", "reportUnusedVariable"), False)
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    given = _run("basedpyright", "--outputjson", "--pythonpath", sys.executable, folder=folder)
    findings: Findings = {}
    for report in json.loads(given)["generalDiagnostics"]:
        line = report["range"]["start"]["line"] + 1
        findings.setdefault(Path(report["file"]).name, {})[line] = (
            f"{report['message']} [{report.get('rule')}]"
        )
    return findings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The project of a user, with both files in it."""
    (tmp_path / GOOD).write_text((HERE / GOOD).read_text("utf-8"), "utf-8")
    (tmp_path / BAD).write_text((HERE / "bad.txt").read_text("utf-8"), "utf-8")
    return tmp_path


@pytest.mark.parametrize("checker", [mypy, pyright], ids=["mypy", "basedpyright"])
def test_what_users_write_type_checks_and_what_must_not_does_not(
    checker: Callable[[Path], Findings], folder: Path
) -> None:
    found = checker(folder)
    assert found.get(GOOD, {}) == {}
    expected = _expected((folder / BAD).read_text("utf-8"), checker.__name__)
    report = found.get(BAD, {})
    assert {line: text for line, text in expected.items() if line not in report} == {}, "accepted"
    assert {line: text for line, text in report.items() if line not in expected} == {}, "refused"


def _expected(text: str, checker: str) -> dict[int, str]:
    return {
        number: line.strip()
        for number, line in enumerate(text.splitlines(), 1)
        if (mark := re.search(r"# expect-error(?:\[(\w+)\])?$", line)) and mark[1] in (None, checker)
    }


def _run(*words: str | Path, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *map(str, words)],
        cwd=folder,
        env=os.environ | {"MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    # 1 is: there were findings. Anything else is a failure of the tool.
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout
