"""The queues that a worker serves, those of `-q` or of the tasks of `--task`; and the routes that no task follows."""

from __future__ import annotations

from collections.abc import Iterable

from fennelq import log
from fennelq.app import App
from fennelq.errors import ConfigurationError
from fennelq.model.limits import Definitions
from fennelq.model.routes import hint, matches, valid_pattern
from fennelq.model.routing import Routing
from fennelq.worker.processes.config import ExecutorConfig

_logger = log.get("fennelq.worker")
_MOST_NAMED = 20


def routing_of(app: App, config: ExecutorConfig) -> Routing:
    """The queues that an executor is started for; raises ConfigurationError when they cannot be read, or when `--task`
    names tasks whose queues carry others."""
    if config.tasks is None:
        return Routing.parse(config.queues)
    if config.queues is not None:
        raise ConfigurationError("-q and --task both choose the queues: pass only one")
    return Routing(dict.fromkeys(_queues_of(app, config.tasks), 1))


def _queues_of(app: App, text: str) -> list[str]:
    """The queues of the tasks that match; raises ConfigurationError when other tasks are sent there as well."""
    patterns = [valid_pattern("--task", part.strip()) for part in text.split(",")]
    for pattern in patterns:
        if not any(matches(task, pattern) for task in app.tasks):
            raise ConfigurationError(f"--task {pattern} matches no task{hint(pattern, app.tasks)}")
    queues = {task.queue for task in app.tasks.values() if _is_wanted(task.name, patterns)}
    if others := _others_in(app, queues, patterns):
        raise ConfigurationError(
            f"--task {text} needs queues without other tasks, but these use them too: {_listed(others)}. Move the "
            f'others to another queue, or move {patterns[0]} to one of its own: app.route("{patterns[0]}", queue="…")'
        )
    return sorted(queues)


def _others_in(app: App, queues: set[str], patterns: list[str]) -> list[str]:
    """The other tasks in these queues, and the routes for tasks that are only in other programs."""
    tasks = [
        f"{task.name} (queue {task.queue})"
        for task in app.tasks.values()
        if task.queue in queues and not _is_wanted(task.name, patterns)
    ]
    routes = [
        f"the route {route}"
        for route in app.routes
        if route.queue in queues
        and not _is_wanted(route.pattern, patterns)
        and not any(matches(task, route.pattern) for task in app.tasks)
    ]
    return [*sorted(tasks), *routes]


def _is_wanted(task: str, patterns: Iterable[str]) -> bool:
    return any(matches(task, pattern) for pattern in patterns)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def check_limits(app: App) -> None:
    """Raises ConfigurationError when the tasks of a limit are sent to several queues. Their queues are known only now:
    routes may follow tasks."""
    definitions = Definitions()
    for task in app.tasks.values():
        definitions.add(task.name, task.limits, task.queue)


def warn_of_unfollowed_routes(app: App) -> None:
    """Warn of each route that no task of the app follows: most often its pattern is misspelt."""
    tasks = {task.name: not task.is_routed for task in app.tasks.values()}
    for route, why in app.routes.unfollowed(tasks):
        _logger.warning("route_unused", pattern=route.pattern, queue=route.queue, why=why)
