"""Jobs of tasks whose code this process does not have: they are sent by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import (
    TYPE_CHECKING,
    Any,
)

from fennelq.errors import ConfigurationError
from fennelq.model.checks import valid_name
from fennelq.model.dedupe import ArgumentsKey
from fennelq.model.job import Job
from fennelq.model.options import Options
from fennelq.task import AnyTask, Task
from fennelq.wording import suggestion

if TYPE_CHECKING:
    from fennelq.app import App


def warn_of_name(task: str, known: Mapping[str, AnyTask], stacklevel: int = 3) -> None:
    """Warns the caller of the caller (`stacklevel` 3) when none of the registered tasks has this name."""
    if not known or task in known:
        return
    import warnings

    hint = suggestion(task, known)
    stop = "" if hint.endswith("?") else "."
    warnings.warn(
        f"no task {task[:200]!r} is registered in this app{hint}{stop} "
        "The job is sent all the same, and waits for a worker that has the task.",
        stacklevel=stacklevel,
    )


def described_without_code(
    app: App, task: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
) -> Job[Any]:
    """A job for a task whose code is not here: its arguments must be JSON values."""

    async def call(*args: Any, **kwargs: Any) -> Any: ...

    valid_name("queue", options.given.get("queue", app.settings.default_queue))
    if isinstance(options.given.get("key"), ArgumentsKey):
        raise ConfigurationError(
            f"the parameters of {task} are not known here, and dedupe.arguments() computes the key from them: "
            "pass the key as a text"
        )
    return Task[Any, Any](app, task, call, Options()).options(**options.given).job(*args, **kwargs)
