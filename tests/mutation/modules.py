"""The Python modules that are mutated, and the tests that judge them.

All of it happens in this process and its children: tests that start workers of their own are left out, because those
would import the module as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Final

import pytest

from tests.mutation.equivalent_python import EQUIVALENT
from tests.mutation.mutants import Mutant
from tests.mutation.python import mutants_of
from tests.mutation.running import Key, Suite

ROOT: Final = Path(__file__).parents[2]
TESTS: Final = ROOT / "tests"

OWN: Final[Mapping[str, Sequence[str]]] = {
    "consumer": ["worker/test_consumer.py"],
    "hot": ["worker/test_hot.py"],
    "rings": ["worker/test_rings.py", "worker/test_consumer.py"],
    "rounds": ["worker/test_rounds.py"],
    "settler": ["worker/test_settler.py", "worker/test_backlog.py"],
    "recovery": ["worker/test_recovery.py"],
    "heartbeat": ["worker/test_heartbeat.py"],
    "lease": ["worker/test_heartbeat.py"],
    "workbench": ["worker/test_workbench.py", "worker/test_bus.py", "features/test_timeouts.py"],
    "held": ["worker/test_workbench.py", "features/test_timeouts.py"],
    "waiting": ["test_waiting.py"],
    "looks": ["test_waiting.py"],
    "progress_notes": ["worker/test_progress_notes.py"],
    "talk": ["broker/test_talk.py"],
    "dispatch": ["broker/test_dispatch.py"],
}
"""Judge first: they are quick."""
OTHERS: Final[Mapping[str, Sequence[str]]] = {
    name: [
        "worker/test_burst.py",
        "worker/test_stopping.py",
        "worker/test_settling.py",
        "worker/test_damaged_queues.py",
        "worker/test_falling.py",
        "features/test_queues.py",
    ]
    for name in ("consumer", "hot", "rings", "rounds", "settler", "workbench", "held")
} | {
    "recovery": ["worker/test_stopping.py", "worker/test_damaged_queues.py"],
    "heartbeat": ["worker/test_stopping.py", "worker/test_damaged_queues.py"],
    "lease": ["worker/test_stopping.py", "worker/test_damaged_queues.py"],
    "waiting": ["features/test_waiting.py", "features/test_progress.py"],
    "looks": ["features/test_waiting.py", "features/test_progress.py"],
    "progress_notes": ["features/test_progress.py", "worker/test_settling.py"],
    "talk": ["test_client.py", "features/test_sending.py"],
    "dispatch": ["features/test_sending.py", "worker/test_courier.py"],
}
SPAWNING: Final = {"spawn", "workers"}
"""Fixtures that start processes."""


class Modules:
    """Modules of `fennelq`, by their last name."""

    equivalent = EQUIVALENT
    patience = 60.0

    def names(self) -> list[str]:
        return list(OWN)

    def mutants_in(self, name: str) -> Iterable[Mutant]:
        path = path_of(name)
        return mutants_of(str(path.relative_to(ROOT / "fennelq")), path.read_text("utf-8"))

    def unchanged(self, names: Sequence[str]) -> Iterable[Mutant]:
        """Each has tests of its own."""
        for path in map(path_of, names):
            yield Mutant(str(path.relative_to(ROOT / "fennelq")), 1, "", "nothing", path.read_text("utf-8"))

    def key_of(self, mutant: Mutant) -> Key:
        return mutant.file, mutant.function, mutant.change

    def warm_up(self) -> None:
        """What children need that is not ours is imported once."""
        for module in ("hypothesis", "anyio.pytest_plugin", "psutil", "fennelq.worker.executor"):
            import_module(module)

    def suites_of(self, mutant: Mutant) -> Iterator[Suite]:
        name = Path(mutant.file).stem
        for seconds, files in ((10, OWN[name]), (30, OTHERS[name])):
            present = [str(TESTS / file) for file in files if (TESTS / file).exists()]
            if present:
                yield Suite(seconds, present, [WithoutProcesses()])

    def put_in_place(self, mutant: Mutant) -> None:
        """Called in a child that imports everything of ours anew."""
        for name in [name for name in sys.modules if is_ours(name)]:
            del sys.modules[name]
        original = SourceFileLoader.get_code
        file = str(ROOT / "fennelq" / mutant.file)

        def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
            if self.path == file:
                return compile(mutant.source, file, "exec")
            return original(self, fullname)

        setattr(SourceFileLoader, "get_code", get_code)  # noqa: B010 - the type checkers know better


class WithoutProcesses:
    """A plugin for pytest: leaves out what starts workers of its own."""

    @pytest.hookimpl
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if not SPAWNING & set(getattr(item, "fixturenames", ()))]


def path_of(name: str) -> Path:
    house = ROOT / "fennelq"
    rooms = (house.glob, (house / "broker").glob, (house / "worker").rglob)
    (path,) = [path for find in rooms for path in find(f"{name}.py")]
    return path


def is_ours(module: str) -> bool:
    room, _, rest = module.partition(".")
    return room == "fennelq" or (room == "tests" and bool(rest) and not rest.startswith("mutation"))
