"""What a reader has before them: a folder, a terminal, an interpreter that is left open, and a worker beside.

The worker, and the web server where a page starts one, are processes of their own. Commands run as shown and must
print what is shown.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import dropwhile
from pathlib import Path
from typing import Final

from fennelq.cli.tables.table import wrapped
from tests.docs.pages import ROOT, Block
from tests.kit.forker import can_start, forker
from tests.kit.ports import HOST, Port
from tests.kit.processes import executors
from tests.kit.spawn import Child, Process
from tests.kit.waiting import Deadline, eventually

PATIENCE: Final = 30.0
PREPARED: Final = ("pip", "mkdir", "cd", "git", "make", "source", ".", "sudo")
"""Commands that put a machine into the state which this one is in."""
SERVERS: Final = {
    "uvicorn": ("uvicorn", "--host={host}", "--port={port}"),
    "gunicorn": ("gunicorn", "--bind={host}:{port}"),
}
"""Web servers: the module, and the option for a port that is free here."""
QUESTIONS: Final = ("queue list", "top --once", "worker list", "job show", "dlq list", "dlq show")
UNSET: Final = ("KUBERNETES_SERVICE_HOST", "DYNO", "INVOCATION_ID", "ECS_CONTAINER_METADATA_URI_V4")
"""What would make fennelq believe that it was deployed."""
WEB_PORT: Final = "localhost:8000"
"""Where a page's web server listens."""

COLUMNS: Final = 120
PROMPT: Final = "tests.docs.prompt"
_SENTENCE = re.compile(r"fennelq: |queue \S+: |jobs wait in |warning: ")
_VARIABLE = re.compile(r"[A-Z_]+=")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_UNDERLINED_IN_JSON = re.compile(r"(?<=\\n) *[~^]+(?=\\n)\\n")
"""Marks below the lines of a traceback. Python 3.13 underlines calls that older ones do not."""
_VARIES = re.compile(r"[0-9a-f]{20,}|\b[0-9a-v]{9}[0-9A-Za-z]{11}\b|\d+(?:[.,]\d+)*")


class Terminal:
    """Types what pages show, in one folder, one thing after the other.

    `serves` is whether a worker is started as soon as there is an app: for pages that show none being started.
    """

    def __init__(
        self,
        folder: Path,
        outputs: Path,
        *,
        environment: Mapping[str, str] | None = None,
        serves: bool = False,
    ) -> None:
        self._folder, self._outputs, self._serves = folder, outputs, serves
        self._extra = dict(environment or {})
        self._beside: dict[str, Process] = {}
        self._prompt: Prompt | None = None
        self._port: Port | None = None
        self._started = 0

    def write(self, block: Block) -> None:
        """Save a block as the file that it names."""
        assert block.file is not None
        path = self._folder / block.file
        path.parent.mkdir(parents=True, exist_ok=True)
        if block.is_added:
            assert path.is_file(), f"{block.place}: {block.file}, to which this is added, does not exist"
            path.write_text(path.read_text("utf-8") + "\n" + block.text, "utf-8")
        else:
            path.write_text(block.text, "utf-8")
        if self._serves and "App(" in block.text and "worker" not in self._beside:
            app = block.file.removesuffix(".py").replace("/", ".")
            self._work(["fennelq", "worker", "-A", f"{app}:app", "-p", "1"])

    def execute(self, block: Block) -> None:
        """Enter a block of Python into the open interpreter."""
        if self._prompt is None:
            self._prompt = Prompt(self._folder, self._environment())
        error = self._prompt.enter(block)
        assert error is None, f"{block.place} raised\n{error}\nThe worker printed\n{self.worker_log}"

    def obey(self, block: Block) -> None:
        """Type the commands of a block, and look at what they print."""
        for command, shown in steps_of(block.text):
            variables, words = parted(shlex.split(command))
            if words[0] in PREPARED or words[1:3] == ["-m", "venv"]:
                continue
            if starts_a_worker(words):
                self._work(words)
                self.expect_of_worker(block, shown)
            elif words[0] in SERVERS:
                self._serve(words)
                self._expect_of("web", block, shown)
            else:
                printed = self._printed_by(words, shown, variables)
                assert matches(shown, printed), f"{block.place}: {command!r} printed\n{printed[:4000]}"

    def expect_of_worker(self, block: Block, shown: str) -> None:
        """Wait until the worker has printed these lines, in this order, perhaps among others."""
        self._expect_of("worker", block, shown)

    def close(self) -> None:
        """Close the interpreter, and press Ctrl-C where a server or a worker runs."""
        if self._prompt is not None:
            self._prompt.close()
        for name in [*self._beside]:
            self._end(name)
        if self._port is not None:
            self._port.release()

    def _expect_of(self, name: str, block: Block, shown: str) -> None:
        process = self._beside.get(name)
        assert process is not None, f"{block.place}: no {name} runs"
        wanted = f"the {name} printed what {block.place} shows"
        eventually(lambda: contains(shown, process.text) or ended(process), within=PATIENCE, what=wanted)
        assert contains(shown, process.text), f"{wanted}, but\n{process.text}"

    def _work(self, words: list[str]) -> None:
        self._start("worker", program(words))
        worker = self._beside["worker"]
        # It handles signals before it has its first executor.
        eventually(
            lambda: executors(worker) or ended(worker), within=PATIENCE, what="the worker has executors"
        )

    def _serve(self, words: list[str]) -> None:
        self._port = self._port or Port()
        module, *flags = SERVERS[words[0]]
        filled = [flag.format(host=HOST, port=self._port.number) for flag in flags]
        self._start("web", [sys.executable, "-m", module, *words[1:], *filled])
        web, port = self._beside["web"], self._port
        eventually(lambda: listens(port) or ended(web), within=PATIENCE, what="the web server listens")
        assert web.running, web.text

    def _start(self, name: str, command: Sequence[str]) -> None:
        self._end(name)
        self._started += 1
        self._beside[name] = Process(
            *command,
            output=self._outputs / f"{name}-{self._started}.log",
            environment=self._environment() | {"FENNELQ_LOG_FORMAT": "console"},
            directory=self._folder,
        )

    def _end(self, name: str) -> None:
        process = self._beside.pop(name, None)
        if process is not None:
            process.interrupt()
            code = process.returncode(PATIENCE)
            process.close()
            # uvicorn cleans up and then ends by the signal.
            fine = code == 0 or (name == "web" and code == -signal.SIGINT)
            assert fine, f"the {name} ended with {code}\n{process.text}"

    def _printed_by(self, words: list[str], shown: str, variables: Mapping[str, str]) -> str:
        """What a command prints. A question is asked again until the answer is there, as people do."""
        deadline = Deadline(PATIENCE)
        while True:
            printed = self._run(words, variables)
            if matches(shown, printed) or not asks(words) or deadline.passed:
                return printed

    def _run(self, words: list[str], variables: Mapping[str, str]) -> str:
        ours, theirs = pty.openpty()
        command = program(self._to_the_port(words))
        environment = os.environ | self._environment() | dict(variables)
        process: Child
        try:
            with os.fdopen(theirs, "wb", 0), Path(os.devnull).open() as nothing:
                if command[1] == "-m" and can_start(command[2], environment, self._folder):
                    streams = (nothing.fileno(), theirs, theirs)
                    process = forker().start(
                        *command[2:], streams=streams, environment=environment, folder=self._folder
                    )
                else:
                    process = subprocess.Popen(
                        command,
                        cwd=self._folder,
                        env=environment,
                        stdin=nothing,
                        stdout=theirs,
                        stderr=theirs,
                    )
            printed = everything_from(ours, process)
            process.wait()
            return plain(printed)
        finally:
            os.close(ours)

    def _to_the_port(self, words: list[str]) -> list[str]:
        if self._port is None:
            return words
        return [word.replace(WEB_PORT, f"{HOST}:{self._port.number}") for word in words]

    @property
    def worker_log(self) -> str:
        """What the worker has printed so far."""
        worker = self._beside.get("worker")
        return worker.text if worker else "nothing: there is none"

    def _environment(self) -> dict[str, str]:
        # A reader's terminal is not a test: there the server of the project is used without asking for it.
        outside = dict.fromkeys(("PYTEST_CURRENT_TEST", "PYTEST_VERSION"), "")
        ours = {"COLUMNS": str(COLUMNS), "TZ": "UTC", "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
        # An installed fennelq has this plugin. Here it may be one that was installed without it.
        ours["PYTEST_PLUGINS"] = "pytest_fennelq"
        return outside | ours | self._extra


class Prompt:
    """An interpreter that is left open in a folder: see `tests.docs.prompt`."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        variables = os.environ | dict(environment)
        (theirs, typed), (answers, answered) = os.pipe(), os.pipe()
        self._process: Child
        try:
            if can_start(PROMPT, variables, folder):
                streams = (theirs, answered, 2)
                self._process = forker().start(PROMPT, streams=streams, environment=variables, folder=folder)
            else:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", PROMPT], cwd=folder, env=variables, stdin=theirs, stdout=answered
                )
        finally:
            os.close(theirs)
            os.close(answered)
        self._typed, self._answers = os.fdopen(typed, "w"), os.fdopen(answers)

    def enter(self, block: Block) -> str | None:
        """Run a block; the traceback when it raises."""
        request = {"code": block.text, "page": str(block.page), "line": block.line}
        self._typed.write(json.dumps(request) + "\n")
        self._typed.flush()
        in_time = select.select([self._answers], [], [], 4 * PATIENCE)[0]
        assert in_time, f"{block.place} runs for more than {4 * PATIENCE:g} s"
        answer = self._answers.readline()
        assert answer, f"{block.place} ended the interpreter"
        error: str | None = json.loads(answer)["error"]
        return error

    def close(self) -> None:
        """End it, also when it still waits for a job that does not end."""
        self._typed.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        self._answers.close()


def ended(process: Process) -> bool:
    """Whether there is nothing to wait for any more."""
    return not process.running


def listens(port: Port) -> bool:
    """Whether a connection to this port is accepted."""
    with socket.socket() as caller:
        return caller.connect_ex((HOST, port.number)) == 0


def parted(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """The variables that are set for a command, `NAME=value` in front of it, and the command."""
    command = [*dropwhile(_VARIABLE.match, words)]
    pairs = (word.split("=", 1) for word in words[: len(words) - len(command)])
    return dict(pairs), command


def starts_a_worker(words: list[str]) -> bool:
    """Whether a command is a worker that runs until it is stopped, and not `fennelq worker list`."""
    is_worker = words[:2] == ["fennelq", "worker"] and all(word.startswith("-") for word in words[2:3])
    return is_worker and not {"--burst", "--help"} & {*words}


def asks(words: list[str]) -> bool:
    """Whether a command only looks, so that it may be repeated."""
    if words[0] == "curl":
        return not {"-d", "-X"} & {*words}
    return (words[0] == "fennelq" and " ".join(words[1:3]) in QUESTIONS) or words[1:] == ["info"]


def program(words: list[str]) -> list[str]:
    """What to start: this interpreter, and with it what pip has installed beside it."""
    if words[0] == "fennelq":
        return [sys.executable, "-m", *words]
    if words[0] == "django-admin":
        return [sys.executable, "-m", "django", *words[1:]]
    if words[0] == "curl":
        return [sys.executable, "-m", "tests.docs.curl", *words[1:]]
    assert words[0] in ("python", "python3"), words
    return [sys.executable, *words[1:]]


def everything_from(terminal: int, process: Child) -> str:
    """What the process prints until it ends."""
    parts: list[bytes] = []
    while select.select([terminal], [], [], PATIENCE)[0]:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the error of Linux at the end of a terminal
            break
        if not part:
            break
        parts.append(part)
    else:
        process.send_signal(signal.SIGKILL)
    return b"".join(parts).decode()


def plain(text: str) -> str:
    """What is left to see: no colours, and of a line that was written over only the last."""
    lines = _COLOURS.sub("", text).replace("\r\n", "\n").split("\n")
    return "\n".join(line.rpartition("\r")[2] for line in lines)


def steps_of(text: str) -> list[tuple[str, str]]:
    """Each command after a `$ `, which a backslash continues, and what is shown below it."""
    parts = re.split(r"^\$ ((?:.*\\\n)*.+)\n?", text, flags=re.MULTILINE)
    assert not parts[0].strip(), text
    return [*zip((one.replace("\\\n", " ") for one in parts[1::2]), parts[2::2], strict=True)]


def matches(shown: str, printed: str) -> bool:
    """Whether all of it was printed and nothing else: numbers and ids may differ, … stands for anything, and a line of
    it for any lines or none."""
    lines = levelled(shown).splitlines()
    pattern = "".join("(?:.*\n)*?" if line == "…" else f"{pattern_of(line)}\n" for line in lines)
    printed = unwrapped(printed)
    return re.fullmatch(pattern, levelled(printed) + "\n" if printed.strip() else "") is not None


def unwrapped(printed: str) -> str:
    """Sentences below a table, and errors, in one line each, as pages show them, wherever the terminal wraps them."""
    lines = printed.splitlines()
    sentences: list[str] = []
    while lines:
        taken = 1
        if _SENTENCE.match(lines[0]):
            while taken < len(lines) and wrapped(" ".join(lines[: taken + 1]), COLUMNS) == "\n".join(
                lines[: taken + 1]
            ):
                taken += 1
        sentences.append(" ".join(lines[:taken]))
        del lines[:taken]
    return "\n".join(sentences)


def contains(shown: str, printed: str) -> bool:
    """Whether these lines were printed, perhaps with others between them."""
    lines = iter(levelled(printed).splitlines())
    wanted = [re.compile(pattern_of(line)) for line in levelled(shown).splitlines() if line]
    return all(any(pattern.fullmatch(line) for line in lines) for pattern in wanted)


def pattern_of(line: str) -> str:
    """Of a line that has been levelled."""
    return re.escape(line).replace("…", ".*?")


def levelled(text: str) -> str:
    """What does not vary from run to run; how wide a column is does not matter."""
    text = _UNDERLINED_IN_JSON.sub("", text.strip("\n"))
    lines = (re.sub(r" {2,}", "  ", _VARIES.sub("0", line)).rstrip() for line in text.splitlines())
    return "\n".join(lines)
