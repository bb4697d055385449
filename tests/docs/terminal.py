"""A terminal for what a page tells its reader to type: commands run as shown and must print what is shown."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.docs.pages import ROOT, Block
from tests.kit.spawn import Process
from tests.kit.waiting import eventually

PATIENCE: Final = 30.0
PREPARED: Final = ("pip", "mkdir", "cd", "git", "make")
"""Commands that put a machine into the state which this one is in."""
UNSET: Final = ("KUBERNETES_SERVICE_HOST", "DYNO", "INVOCATION_ID", "ECS_CONTAINER_METADATA_URI_V4")
"""What would make fennelq believe that it was deployed."""

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_VARIES = re.compile(r"[0-9a-f]{20,}|\d+(?:[.,]\d+)*")


class Terminal:
    """Runs the console blocks of pages in one folder, one after the other, with at most one worker beside."""

    def __init__(self, folder: Path, outputs: Path) -> None:
        self._folder, self._outputs = folder, outputs
        self._worker: Process | None = None
        self._workers = 0

    def obey(self, block: Block) -> None:
        """Type the commands of a block, and look at what they print."""
        for command, shown in steps_of(block.text):
            words = shlex.split(command)
            if words[0] in PREPARED:
                continue
            if words[:2] == ["fennelq", "worker"] and "--burst" not in words:
                self._work(words)
                self.expect_of_worker(block, shown)
            else:
                printed = self._run(words)
                assert matches(shown, printed), f"{block.place}: {command!r} printed\n{printed}"

    def expect_of_worker(self, block: Block, shown: str) -> None:
        """Wait until the worker has printed these lines, in this order, perhaps among others."""
        worker = self._worker
        assert worker is not None, f"{block.place}: no worker runs"
        wanted = f"the worker printed what {block.place} shows"
        eventually(lambda: contains(shown, worker.text) or ended(worker), within=PATIENCE, what=wanted)
        assert contains(shown, worker.text), f"{wanted}, but\n{worker.text}"

    def close(self) -> None:
        """Press Ctrl-C where a worker runs."""
        if self._worker is not None:
            self._worker.interrupt()
            code = self._worker.returncode(PATIENCE)
            self._worker.close()
            assert code == 0, self._worker.text
            self._worker = None

    def _work(self, words: list[str]) -> None:
        self.close()
        self._workers += 1
        self._worker = Process(
            *program(words),
            output=self._outputs / f"worker-{self._workers}.log",
            environment=self._environment() | {"FENNELQ_LOG_FORMAT": "console"},
            directory=self._folder,
        )

    def _run(self, words: list[str]) -> str:
        ours, theirs = pty.openpty()
        try:
            with subprocess.Popen(
                program(words),
                cwd=self._folder,
                env=os.environ | self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=theirs,
                stderr=theirs,
                close_fds=True,
            ) as process:
                os.close(theirs)
                return plain(everything_from(ours, process))
        finally:
            os.close(ours)

    def _environment(self) -> dict[str, str]:
        # A reader's terminal is not a test: there the server of the project is used without asking for it.
        outside = dict.fromkeys(("PYTEST_CURRENT_TEST", "PYTEST_VERSION"), "")
        return outside | {"COLUMNS": "120", "TZ": "UTC", "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}


def ended(worker: Process) -> bool:
    """Whether there is nothing to wait for any more."""
    return not worker.running


def program(words: list[str]) -> list[str]:
    """What to start: this interpreter, and fennelq with it."""
    if words[0] == "fennelq":
        return [sys.executable, "-m", *words]
    assert words[0] == "python", words
    return [sys.executable, *words[1:]]


def everything_from(terminal: int, process: subprocess.Popen[bytes]) -> str:
    """What the process prints until it ends."""
    parts: list[bytes] = []
    while select.select([terminal], [], [], PATIENCE)[0]:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # what Linux says at the end of a terminal
            break
        if not part:
            break
        parts.append(part)
    else:
        process.kill()
    return b"".join(parts).decode()


def plain(text: str) -> str:
    """What is left to see: no colours, and of a line that was written over only the last."""
    lines = _COLOURS.sub("", text).replace("\r\n", "\n").split("\n")
    return "\n".join(line.rpartition("\r")[2] for line in lines)


def steps_of(text: str) -> list[tuple[str, str]]:
    """Each command after a `$ `, and what is shown below it."""
    parts = re.split(r"^\$ (.+)\n?", text, flags=re.MULTILINE)
    assert not parts[0].strip(), text
    return [*zip(parts[1::2], parts[2::2], strict=True)]


def matches(shown: str, printed: str) -> bool:
    """Whether all of it was printed and nothing else: numbers and ids may differ, … stands for anything."""
    return pattern_of(shown).fullmatch(levelled(printed)) is not None


def contains(shown: str, printed: str) -> bool:
    """Whether these lines were printed, perhaps with others between them."""
    lines = iter(levelled(printed).splitlines())
    wanted = [pattern_of(line) for line in shown.splitlines() if line.strip()]
    return all(any(pattern.fullmatch(line) for line in lines) for pattern in wanted)


def pattern_of(shown: str) -> re.Pattern[str]:
    escaped = re.escape(levelled(shown)).replace("…", "(?:.|\n)*?")
    return re.compile(escaped)


def levelled(text: str) -> str:
    """What does not vary from run to run; how wide a column is does not matter."""
    lines = (re.sub(r" {2,}", "  ", _VARIES.sub("0", line)).rstrip() for line in text.strip().splitlines())
    return "\n".join(lines)
