"""Apps for tests, whose tasks are declared inside of the tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fennelq import App
from fennelq.declaration import task_name
from fennelq.model.options import OptionArgs
from fennelq.task import AnyTask


class LocalApp(App):
    """An app whose tasks may be local functions: each has a name, as `@app.task(name=…)` would give it.

    Real apps refuse local functions without a name, because a worker in another process does not find them. Workers of
    these tests run in the process of the test.
    """

    def _register(
        self,
        function: Callable[..., Any],
        name: str | None,
        options: OptionArgs,
        isolation: str | None = None,
    ) -> AnyTask:
        return super()._register(function, name or task_name(function), options, isolation)
