"""Acts as soon as a package is imported, whichever code imports it: fennelq configures a package that the code of an
app may use, and does not import it for programs that never use it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


def when_imported(package: str, act: Callable[[], None]) -> None:
    """Call `act` when the package has been imported: now if it is imported already, otherwise before the code that
    imports it goes on. A later call for the same package replaces the function of an earlier one."""
    forget(package)
    if package in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _Finder(package, act))


def forget(package: str) -> None:
    """Undo `when_imported`, if the package has not been imported since."""
    sys.meta_path[:] = [
        one for one in sys.meta_path if not (isinstance(one, _Finder) and one.package == package)
    ]


class _Finder(MetaPathFinder):
    """Finds one package as the other finders do, and calls a function when the package has been loaded."""

    def __init__(self, package: str, act: Callable[[], None]) -> None:
        self.package, self.act = package, act
        self._asks_others = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """How the other finders load it."""
        if name != self.package or self._asks_others:
            return None
        self._asks_others = True
        try:
            spec = find_spec(name)
        finally:
            self._asks_others = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Watched(spec.loader, self)
        return spec


class _Watched(Loader):
    def __init__(self, loader: Loader, finder: _Finder) -> None:
        self._loader, self._finder = loader, finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Load the module; afterwards nothing of this class is left in it. When it cannot be loaded, the next import of
        it tries again."""
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        forget(self._finder.package)
        self._finder.act()
