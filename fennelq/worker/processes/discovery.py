"""Finds the App: by `-A`, FENNELQ_APP or pyproject.toml, or the only one in the current folder.

Importing an app runs its code, so its name is checked before the import, and no text is evaluated.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from inspect import isroutine
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any, Final, NamedTuple

import fennelq
from fennelq.app import App
from fennelq.errors import ConfigurationError
from fennelq.wording import a_kind_of, suggestion

VARIABLE: Final = "FENNELQ_APP"
USUAL_FILES: Final = ("app.py", "tasks.py", "main.py")

_FENNELQ = str(Path(fennelq.__file__).parent)
_PATH = re.compile(r"[A-Za-z_][\w.]*(:[A-Za-z_]\w*)?")
_WAYS = f'name one with -A module:attribute, {VARIABLE}, or app = "module:attribute" in [tool.fennelq]'


class FoundApp(NamedTuple):
    """An app, and where it was found. Another process loads it with `load_app(found.path, found.folder)`."""

    app: App
    path: str
    """`module:attribute`."""
    how: str
    """The source of its name, as a text for people."""
    folder: Path
    """The folder that is searched first for its modules."""


class _Named(NamedTuple):
    path: str
    how: str
    folder: Path


def find_app(explicit: str | None = None, folder: Path | None = None) -> FoundApp:
    """The app of this folder. Raises ConfigurationError, with a list of the places that were searched, if none is
    found.

    `folder` (default: the current one) is where the search starts and where modules are looked for first.
    """
    here = (folder or Path.cwd()).resolve()
    if not here.is_dir():
        raise ConfigurationError(f"{here} is not a folder: --app-dir names the one your modules are in")
    named = _named(explicit, here)
    if named is None:
        return _only_app_in(here)
    app, path = _load(named.path, named.folder, named.how)
    return FoundApp(app, path, named.how, named.folder)


def load_app(path: str, folder: Path | None = None) -> App:
    """The app at `module:attribute`, or the only one in `module`; raises ConfigurationError if it does not exist."""
    return _load(path, folder or Path.cwd(), "asked for")[0]


# An app that is named


def _named(explicit: str | None, here: Path) -> _Named | None:
    if explicit is not None:
        return _Named(explicit, "-A", here)
    if variable := os.environ.get(VARIABLE):
        return _Named(variable, VARIABLE, here)
    pyproject = _nearest_pyproject(here)
    path = _app_of(pyproject) if pyproject else None
    return _Named(path, str(pyproject), pyproject.parent) if pyproject and path is not None else None


def _nearest_pyproject(here: Path) -> Path | None:
    files = (folder / "pyproject.toml" for folder in (here, *here.parents))
    return next((file for file in files if file.is_file()), None)


def _app_of(pyproject: Path) -> str | None:
    try:
        content: Any = tomllib.loads(pyproject.read_text(encoding="utf-8"))
        path: object = content.get("tool", {}).get("fennelq", {}).get("app")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError, AttributeError) as error:
        raise ConfigurationError(f"{pyproject} cannot be read: {error}") from None
    if path is not None and not isinstance(path, str):
        raise ConfigurationError(f'{pyproject}: app is a text below [tool.fennelq], like "shop.tasks:app"')
    return path


# From a path to an app


def _load(path: str, folder: Path, how: str) -> tuple[App, str]:
    module_name, attribute = _parts(path, how)
    module = _imported(module_name, folder)
    if not attribute:
        attribute = _only_attribute(module)
    app = getattr(module, attribute, None)
    if app is None:
        shadow = _shadowed(module, folder)
        raise ConfigurationError(
            shadow or f"{module_name} has no {attribute!r}{suggestion(attribute, _apps(module))}"
        )
    if not isinstance(app, App):
        raise ConfigurationError(_shadowed(module, folder) or _not_an_app(module, attribute, app))
    # The module that was named, and not the one that defines the App: several services may import one shared App.
    app.service = f"{module_name}:{app.name}"
    return app, f"{module_name}:{attribute}"


def _not_an_app(module: ModuleType, attribute: str, given: object) -> str:
    known = suggestion(attribute, _apps(module))
    if isroutine(given):
        return (
            f"{module.__name__}:{attribute} is a function, not a fennelq App: call it in the module, "
            f"like app = {attribute}(), and name {module.__name__}:app{known}"
        )
    return f"{module.__name__}:{attribute} is {a_kind_of(given)}, not a fennelq App{known}"


def _shadowed(module: ModuleType, folder: Path) -> str:
    """The problem if another module than the one in `folder` was imported; empty if the right one was."""
    here = folder.joinpath(*module.__name__.split(".")).with_suffix(".py")
    there = getattr(module, "__file__", None)
    if not here.is_file() or (there is not None and Path(there).resolve() == here.resolve()):
        return ""
    return (
        f"{module.__name__} is another module, {there or 'built into Python'}, which was imported instead of {here}: "
        "give the file another name"
    )


def _parts(path: str, how: str) -> tuple[str, str]:
    hint = _as_module(path)
    if hint or not _PATH.fullmatch(path):
        also = f"; did you mean {hint}?" if hint else ""
        raise ConfigurationError(
            f"{path[:100]!r} ({how}) names no app: write module:attribute, like shop.tasks:app{also}"
        )
    module, _, attribute = path.partition(":")
    return module, attribute


def _as_module(path: str) -> str:
    """The module path for a path of a file, like `shop/tasks.py`, `shop/tasks.py:app` or `shop/tasks:app`."""
    file, colon, attribute = path.partition(":")
    meant = file.removeprefix("./").removesuffix(".py").strip("/").replace("/", ".") + colon + attribute
    return meant if (file.endswith(".py") or "/" in file) and _PATH.fullmatch(meant) else ""


def _only_attribute(module: ModuleType) -> str:
    apps = _apps(module)
    if len(set(map(id, apps.values()))) != 1:
        found = f"holds several: {', '.join(apps)}" if apps else "holds none"
        raise ConfigurationError(
            f"{module.__name__} should hold one fennelq App, but {found}; write module:attribute"
        )
    return next(iter(apps))


def _apps(module: ModuleType) -> dict[str, App]:
    return {name: value for name, value in vars(module).items() if isinstance(value, App)}


# Importing


def _imported(name: str, folder: Path) -> ModuleType:
    _look_first_in(folder)
    try:
        return importlib.import_module(name)
    except ConfigurationError as error:
        place = _line_at_fault(error)
        raise ConfigurationError(f"{error} ({place})" if place else str(error)) from None
    except (Exception, SystemExit) as error:
        raise ConfigurationError(_import_problem(name, folder, error)) from error


def _look_first_in(folder: Path) -> None:
    """Search this folder first. Python does so by itself for `python -m`, but not for an installed command."""
    entry = str(folder)
    if sys.path[:1] != [entry]:
        sys.path.insert(0, entry)
        importlib.invalidate_caches()


def _import_problem(name: str, folder: Path, error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{name} cannot be imported: {error.filename}, line {error.lineno}: {error.msg}"
    place = _line_at_fault(error)
    if not place and isinstance(error, ModuleNotFoundError):
        parent, _, attribute = name.rpartition(".")
        if "is not a package" in str(error) and error.name == name:
            return (
                f"{parent} is a module and {attribute!r} is in it: write {parent}:{attribute}, with a colon"
            )
        return f"{error}, neither in {folder} nor among the installed ones; --app-dir names another folder"
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{name} cannot be imported: {place + ': ' if place else ''}{what}{_way_there(error)}"


def _way_there(error: BaseException) -> str:
    """The frames of the user's code, if it has more than one: the last frame alone does not show the way to it."""
    frames = [frame for frame in extract_tb(error.__traceback__) if not _is_plumbing(frame.filename)]
    own = [frame for frame in frames if not _is_library(frame.filename)]
    lines = [f'\n  File "{one.filename}", line {one.lineno}, in {one.name}\n    {one.line}' for one in own]
    return "".join(lines) if len(own) > 1 else ""


def _line_at_fault(error: BaseException) -> str:
    """The innermost line of the user's own code, or of any code if the traceback contains none of it."""
    frames = [frame for frame in extract_tb(error.__traceback__) if not _is_plumbing(frame.filename)]
    own = [frame for frame in frames if not _is_library(frame.filename)]
    chosen = (own or frames)[-1:]
    return f"{chosen[0].filename}, line {chosen[0].lineno}" if chosen else ""


def _is_library(file: str) -> bool:
    from sysconfig import get_paths

    paths = get_paths()
    libraries = [*(paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")), _FENNELQ]
    return any(Path(file).is_relative_to(library) for library in libraries)


def _is_plumbing(file: str) -> bool:
    return file in (__file__, importlib.__file__) or file.startswith("<frozen ")


# No app is named: the usual files


def _only_app_in(here: Path) -> FoundApp:
    looked: list[str] = [*_where_none_is_named(here)]
    found: dict[str, App] = {}
    for file in map(here.joinpath, USUAL_FILES):
        if problem := _why_not_import(file, found):
            looked.append(f"{file.name}: {problem}")
            continue
        module = _imported(file.stem, here)
        apps = _apps(module)
        looked.append(f"{file.name}: {', '.join(apps) or 'holds no App'}")
        found.update({f"{file.stem}:{name}": app for name, app in apps.items()})
    return _single(found, looked, here)


def _single(found: dict[str, App], looked: list[str], here: Path) -> FoundApp:
    distinct = {id(app): path for path, app in found.items()}
    if len(distinct) > 1:
        raise ConfigurationError(f"several apps found in {here}: {', '.join(distinct.values())}; {_WAYS}")
    if not distinct:
        raise ConfigurationError(
            f"no app found. Looked at {'; '.join(looked)}. If your app is elsewhere, {_WAYS}"
        )
    # One app may be found in several files, because tasks.py imports app.py and adds tasks to its app. The file that
    # was imported last has all tasks.
    path = next(iter(distinct.values()))
    found[path].service = f"{path.partition(':')[0]}:{found[path].name}"
    return FoundApp(found[path], path, f"{path.partition(':')[0]}.py in {here}", here)


def _where_none_is_named(here: Path) -> Iterator[str]:
    yield "-A (not given)"
    yield f"{VARIABLE} (not set)"
    pyproject = _nearest_pyproject(here)
    yield f"{pyproject} (names no app)" if pyproject else "pyproject.toml (none here or above)"


def _why_not_import(file: Path, found: dict[str, App]) -> str:
    """The reason not to import a file, or an empty text. An app.py or main.py that does not use fennelq must not be run
    only because it is in this folder."""
    if not file.is_file():
        return "not there" if file.parent.is_dir() else "no such folder"
    imports = _imports(file)
    if not _may_hold_app(imports, file.parent):
        return "imports neither fennelq nor a neighbour"
    if file.name == "main.py" and "fennelq.App" not in imports and any(app.tasks for app in found.values()):
        return "not needed"
    return ""


def _may_hold_app(imports: set[str], folder: Path) -> bool:
    return any(
        root == "fennelq" or (folder / f"{root}.py").is_file() or (folder / root).is_dir()
        for root in (name.partition(".")[0] for name in imports)
    )


def _imports(file: Path) -> set[str]:
    """Dotted names that a file imports. A file that cannot be parsed counts as one that imports fennelq: then it is
    imported, and the error shows the reason."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return {"fennelq"}
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names
