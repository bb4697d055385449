"""A function is called when a package is imported, whichever code imports it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fennelq.imports import forget, when_imported

NAME = "imported_by_a_test"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a package that nothing has imported."""
    folder = tmp_path / NAME
    folder.mkdir()
    (folder / "__init__.py").write_text("seen = []\n", "utf-8")
    (folder / "part.py").write_text("", "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    finders = [*sys.meta_path]
    yield folder / "__init__.py"
    assert sys.meta_path == finders, "nothing waits any more"
    sys.modules.pop(NAME, None)
    sys.modules.pop(f"{NAME}.part", None)


def note(text: str = "acted") -> None:
    sys.modules[NAME].seen.append(text)


def seen() -> list[str]:
    found: list[str] = importlib.import_module(NAME).seen
    return found


def test_the_function_is_called_once_when_the_package_is_complete(package: Path) -> None:
    when_imported(NAME, note)
    assert NAME not in sys.modules
    importlib.import_module(f"{NAME}.part")
    importlib.import_module(NAME)
    assert seen() == ["acted"]


def test_it_is_called_at_once_for_a_package_that_is_there(package: Path) -> None:
    importlib.import_module(NAME)
    when_imported(NAME, note)
    assert seen() == ["acted"]


def test_a_later_function_replaces_an_earlier_one(package: Path) -> None:
    when_imported(NAME, lambda: note("earlier"))
    when_imported(NAME, lambda: note("later"))
    assert seen() == ["later"]


def test_a_forgotten_function_is_not_called(package: Path) -> None:
    when_imported(NAME, note)
    forget(NAME)
    assert seen() == []


def test_a_package_that_cannot_be_loaded_is_tried_again(package: Path) -> None:
    text = package.read_text("utf-8")
    package.write_text("raise RuntimeError('not yet')\n", "utf-8")
    when_imported(NAME, note)
    with pytest.raises(RuntimeError, match="not yet"):
        importlib.import_module(NAME)
    package.write_text(f"{text}# another size\n", "utf-8")
    assert seen() == ["acted"]


def test_the_module_is_as_if_it_had_been_imported_without(package: Path) -> None:
    when_imported(NAME, note)
    module = importlib.import_module(NAME)
    assert module.__spec__ is not None
    plain = importlib.util.spec_from_file_location(NAME, package)
    assert plain is not None
    assert type(module.__spec__.loader) is type(module.__loader__) is type(plain.loader)
    assert (module.__file__, module.__path__) == (str(package), [str(package.parent)])
    assert module.__spec__.cached == plain.cached


def test_a_package_that_does_not_exist_is_missing_as_before(package: Path) -> None:
    when_imported("no_such_package", note)
    try:
        with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_package'"):
            importlib.import_module("no_such_package")
    finally:
        forget("no_such_package")
