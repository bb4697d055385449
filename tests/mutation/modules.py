"""The Python modules that are mutated, and the tests that judge them.

All of it happens in this process and its children: tests that start workers of their own are left out, because those
would import the module as it is.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final

import pytest

import fennelq
from tests.mutation.equivalent_python import EQUIVALENT
from tests.mutation.mutants import Mutant
from tests.mutation.python import functions_in, mutants_of
from tests.mutation.running import Key, Place

HOUSE: Final = Path(fennelq.__file__).parent
TESTS: Final = Path(__file__).parents[1]

_Function = tuple[str, str, int]
"""A file, a qualified name, and the first line."""

OWN: Final[Mapping[str, Sequence[str]]] = {
    "consumer": ["worker/test_rings.py", "worker/test_consumer.py", "worker/test_modes.py"],
    "hot": ["worker/test_hot.py"],
    "batches": ["worker/test_batches.py"],
    "rings": ["worker/test_rings.py", "worker/test_consumer.py"],
    "rounds": ["worker/test_rounds.py"],
    "settler": ["worker/test_settler.py", "worker/test_backlog.py", "worker/test_progress_notes.py"],
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
    "routes": ["model/test_routes.py"],
    "serving": ["worker/test_modes.py", "model/test_limits.py"],
    "budget": ["worker/test_modes.py"],
    "tally": ["worker/test_tally.py"],
    "meter": ["worker/test_meter.py"],
    "times": ["model/test_times.py"],
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
    "routes": ["features/test_routing.py"],
    "serving": ["features/test_routing.py"],
    "batches": ["worker/test_rings.py"],
    "budget": ["worker/test_rings.py"],
    "tally": ["worker/test_meter.py"],
    "meter": ["features/test_times.py"],
    "times": ["worker/test_tally.py"],
}
SPAWNING: Final = {"spawn", "workers"}
"""Fixtures that start processes."""


class Modules:
    """Modules of `fennelq`, by their last name."""

    equivalent = EQUIVALENT

    def __init__(self) -> None:
        self._functions: dict[_Function, list[FunctionType]] = {}
        self._files: Set[str] = frozenset()

    def names(self) -> list[str]:
        return list(OWN)

    def mutants_in(self, name: str) -> Iterable[Mutant]:
        path = path_of(name)
        return mutants_of(str(path.relative_to(HOUSE)), path.read_text("utf-8"))

    def can_be_loaded(self, mutant: Mutant) -> bool:
        """`mutants_of` has compiled it."""
        return True

    def key_of(self, mutant: Mutant) -> Key:
        return mutant.file, mutant.function, mutant.change

    def targets(self, names: Sequence[str]) -> list[str]:
        files = dict.fromkeys(file for name in names for file in (*OWN[name], *OTHERS[name]))
        return [str(TESTS / file) for file in files]

    def plugins(self) -> list[object]:
        return [WithoutProcesses()]

    def warm_up(self) -> None:
        """What children need that is not ours is imported once."""
        for module in ("hypothesis", "anyio.pytest_plugin", "psutil", "fennelq.worker.executor"):
            import_module(module)

    def collected(self, names: Sequence[str]) -> None:
        # All of them, so that what is noted of a test is complete, and can be kept.
        self._files = {str(path_of(name)) for name in OWN}
        # What pytest has collected is frozen, and frozen objects are not listed.
        gc.unfreeze()
        for one in gc.get_objects():
            if isinstance(one, FunctionType) and one.__code__.co_filename in self._files:
                self._functions.setdefault(_name_of(one.__code__), []).append(one)
        gc.freeze()
        asked = {str(path_of(name)) for name in names}
        if missing := asked - {file for file, _, _ in self._functions}:
            raise LookupError(f"no function of {', '.join(sorted(missing))} was found: nothing can be judged")

    @contextmanager
    def noting(self, ran: set[Place]) -> Generator[Callable[[], None]]:
        """Each function begins with a statement that notes it. (A profile function would make the tests so slow that
        some fail.)"""
        before = [(one, one.__code__) for functions in self._functions.values() for one in functions]
        for file in self._files:
            self._exchange(_noting_code(file), ran)
        yield lambda: None
        for function, code in before:
            function.__code__ = code

    def judges(self, mutant: Mutant, file: str, ran: Collection[Place]) -> bool:
        name = Path(mutant.file).stem
        return file in (*OWN[name], *OTHERS[name]) and (mutant.file, mutant.function) in ran

    def is_own(self, mutant: Mutant, file: str) -> bool:
        return file in OWN[Path(mutant.file).stem]

    def is_certain(self, problem: str) -> bool:
        """These tests have event loops and threads: any failure may come from a busy machine."""
        return False

    def put_in_place(self, mutant: Mutant) -> None:
        """Gives the functions that exist the code of the mutant."""
        code = compile(mutant.source, str(HOUSE / mutant.file), "exec")
        changed = self._exchange(code, None, mutant.function)
        assert changed, f"{mutant.name}: there is no such function"

    def _exchange(self, module: CodeType, ran: set[Place] | None, only: str | None = None) -> int:
        """Gives functions their code in a compiled module. Returns how many."""
        changed = 0
        for code in _codes_in(module):
            if only is None or code.co_qualname == only:
                for function in self._functions.get(_name_of(code), ()):
                    function.__code__ = code
                    function.__globals__["__ran__"] = ran
                    changed += 1
        return changed


def _noting_code(file: str) -> CodeType:
    tree = ast.parse(Path(file).read_text("utf-8"))
    # Without the folder of the project: what is noted is kept, and may be read in another one.
    inside = str(Path(file).relative_to(HOUSE))
    for name, function in functions_in(tree):
        note = ast.parse(f"__ran__.add({(inside, name)!r})").body[0]
        function.body.insert(0, ast.copy_location(note, function.body[0]))
    return compile(ast.fix_missing_locations(tree), file, "exec")


def _name_of(code: CodeType) -> _Function:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes_in(one)


class WithoutProcesses:
    """A plugin for pytest: leaves out what starts workers of its own."""

    @pytest.hookimpl
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if not SPAWNING & set(getattr(item, "fixturenames", ()))]


def path_of(name: str) -> Path:
    rooms = (
        HOUSE.glob,
        (HOUSE / "waiting").glob,
        (HOUSE / "broker").glob,
        (HOUSE / "model").glob,
        (HOUSE / "worker").rglob,
    )
    (path,) = [path for find in rooms for path in find(f"{name}.py")]
    return path
