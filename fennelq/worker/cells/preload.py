"""What a cell must have imported before it runs a job: the app, and the settings of its logs."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from fennelq.app import App
from fennelq.connections import rewired
from fennelq.declaration import name_of_module
from fennelq.errors import ConfigurationError
from fennelq.wiring import Wiring
from fennelq.worker.processes.config import ExecutorConfig
from fennelq.worker.processes.discovery import load_app

REDIS_URL: Final = "_FENNELQ_CELLS_REDIS_URL"
"""The URL for an app from which an executor was made. Not an argument of a command: it may contain a password."""
_for_ever: Final = ExitStack()
"""Contexts that this process never leaves."""
_importing: list[str] = []
"""The app that this process has imported for its cells; empty in all other processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preload:
    """How a new process finds the app of an executor. It travels as one argument of a command line."""

    app: str = ""
    """Where the app is: `module:attribute`; empty for an executor that was made in a program, from its App."""
    module: str = ""
    """If `app` is empty: the module that makes the app."""
    name: str = ""
    """If `app` is empty: the name of the app."""
    modules: Sequence[str] = ()
    """If `app` is empty: the modules of the tasks that run in cells."""
    namespace: str = ""
    """If `app` is empty: the namespace of the app. In a test it is not the usual one."""
    folder: str = "."
    path: Sequence[str] = ()
    """The folders in which the executor looks for modules."""
    parent: int = 0
    """The process id of the executor."""
    control: int = -1
    """The number of the descriptor to the executor."""
    log_format: str = "auto"
    log_level: str = "info"
    log_errors: str = "traceback"
    log_config: str = "fennelq"

    @classmethod
    def of(cls, app: App, config: ExecutorConfig) -> Preload:
        """The one for this executor; raises ConfigurationError when a new process could not find its app."""
        if _importing:
            raise ConfigurationError(
                f"{_importing[0]} starts a worker when it is imported, and the processes of its tasks import it: "
                'start the worker below if __name__ == "__main__":'
            )
        if not config.app:
            module = app.service.partition(":")[0]
            check_importable(app, module)
            return cls(
                module=module,
                name=app.name,
                modules=_modules(app),
                namespace=app.namespace,
                path=[*map(str, sys.path)],
                parent=os.getpid(),
            )
        return cls(
            app=config.app,
            folder=config.folder,
            path=[*map(str, sys.path)],
            parent=os.getpid(),
            log_format=config.log_format,
            log_level=config.log_level,
            log_errors=config.log_errors,
            log_config=config.log_config,
        )

    def load(self) -> App:
        """Import the app; raises what its import raises, or ConfigurationError."""
        sys.path[:] = self.path
        _importing.append(self.app or self.module)
        if self.app:
            return load_app(self.app, Path(self.folder))
        module = importlib.import_module(self.module)
        for name in self.modules:
            importlib.import_module(name)
        for value in vars(module).values():
            if isinstance(value, App) and value.name == self.name:
                self._rewire(value)
                return value
        raise ConfigurationError(_not_found(self.name, self.module))

    def _rewire(self, app: App) -> None:
        """Let the app reach the same Redis as in its executor: `fennelq.testing` has another one for each test."""
        url = os.environ.pop(REDIS_URL, None)
        settings = app.settings.model_copy(update={"redis_url": url})
        _for_ever.enter_context(rewired(app, settings, self.namespace, Wiring()))

    def to_text(self) -> str:
        """These facts as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Preload:
        """The facts that `to_text` wrote."""
        fields: dict[str, Any] = json.loads(text)
        return cls(**fields)


def check_importable(app: App, module: str) -> None:
    """Raises ConfigurationError when an import of this module would not make the app."""
    # A script is `__main__` here, and has the name of its file in another process.
    for known in (sys.modules.get(module), sys.modules.get("__main__")):
        if known is not None and any(value is app for value in vars(known).values()):
            return
    raise ConfigurationError(_not_found(app.name, module))


def _not_found(name: str, module: str) -> str:
    return (
        f"tasks with isolation='process' run in processes that import the app, and an import of {module} makes no "
        f"app {name!r}: assign the App to a name at the top level of that module"
    )


def _modules(app: App) -> Sequence[str]:
    return sorted({name_of_module(task.function) for task in app.tasks.values() if task.isolated})
