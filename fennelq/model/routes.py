"""The routes of an app: patterns of task names, each with the queue of the tasks that name none themselves.

A pattern is the name of a task, or has `*` for any characters. A dot in a pattern also stands for the colon of a task
name, so `shop.images.*` matches `shop.images:resize` and `shop.images.thumbs:make`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple, Self
from weakref import WeakValueDictionary

from fennelq.errors import ConfigurationError
from fennelq.model.checks import valid_name
from fennelq.model.routing import is_pattern
from fennelq.wording import a_kind_of, suggestion


class Route(NamedTuple):
    """Tasks that match the pattern go to the queue."""

    pattern: str
    queue: str

    @classmethod
    def of(cls, pattern: object, queue: str) -> Self:
        """A route; raises ConfigurationError when the pattern or the queue is not valid."""
        return cls(valid_pattern("app.route", pattern), valid_name("queue", queue))

    def __str__(self) -> str:
        return f"{self.pattern!r} (queue {self.queue!r})"

    @property
    def closeness(self) -> tuple[bool, int]:
        """The larger, the more closely it describes the tasks that it matches: an exact name is closer than a pattern,
        and more characters are closer than fewer."""
        return not is_pattern(self.pattern), len(self.pattern.replace("*", ""))


class Routes:
    """The routes of one app, and the queue of everything that none of them matches."""

    def __init__(self, default: str) -> None:
        self._default = default
        self._routes: dict[str, Route] = {}
        # Weak, because a program may send jobs of any number of task names.
        self._routed: WeakValueDictionary[str, Routed] = WeakValueDictionary()

    def add(self, route: Route, tasks: Iterable[str]) -> None:
        """Add a route. Raises ConfigurationError when another one has the same pattern, or matches one of these tasks
        equally closely."""
        known = self._routes.get(route.pattern)
        if known is not None and known != route:
            raise ConfigurationError(
                f"app.route: {route.pattern!r} has two queues, {known.queue!r} and {route.queue!r}: remove one route"
            )
        routes = {**self._routes, route.pattern: route}
        for task in tasks:
            _closest(task, routes.values())
        self._routes = routes
        for routed in list(self._routed.values()):
            routed.forget()

    def routed(self, task: str) -> Routed:
        """The queue of a task for every call of it, also after further routes were added."""
        found = self._routed.get(task)
        if found is None:
            found = self._routed[task] = Routed(self, task)
        return found

    def queue_of(self, task: str) -> str:
        """The queue of a task that names none itself; raises ConfigurationError when two routes match equally."""
        route = _closest(task, self)
        return self._default if route is None else route.queue

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes.values())

    def unfollowed(self, tasks: Mapping[str, bool]) -> Iterator[tuple[Route, str]]:
        """The routes that no task follows, with the reason. `tasks` are all tasks, and whether each names its queue
        itself."""
        for route in self:
            matching = [task for task in tasks if matches(task, route.pattern)]
            free = [task for task in matching if not tasks[task]]
            if not matching:
                yield route, f"it matches no task{hint(route.pattern, tasks)}"
            elif not free:
                yield (
                    route,
                    f"the tasks that it matches name their queue themselves: {', '.join(sorted(matching))}",
                )
            elif not any(_closest(task, self) == route for task in free):
                yield route, f"other routes match its tasks more closely: {', '.join(sorted(free))}"


class Routed:
    """The queue that the routes choose for one task. All variants of the task share it."""

    __slots__ = ("__weakref__", "_routes", "_task", "known")

    def __init__(self, routes: Routes, task: str) -> None:
        self._routes, self._task = routes, task
        self.known = ""
        """The queue; empty before it was found. Every call reads it, so it is not looked up each time."""

    def queue(self) -> str:
        """Find the queue; raises ConfigurationError when two routes match equally."""
        self.known = self._routes.queue_of(self._task)
        return self.known

    def forget(self) -> None:
        """Find the queue again at the next call."""
        self.known = ""


def _closest(task: str, routes: Iterable[Route]) -> Route | None:
    matching = sorted(
        (route for route in routes if matches(task, route.pattern)), key=lambda route: route.closeness
    )
    if len(matching) > 1 and matching[-1].closeness == matching[-2].closeness:
        raise ConfigurationError(
            f"task {task!r} matches two routes equally, {matching[-2]} and {matching[-1]}: "
            "add a route for its exact name, or name the queue at the task"
        )
    return matching[-1] if matching else None


def matches(task: str, pattern: str) -> bool:
    """Whether a pattern stands for this task, among others."""
    # Only `*` is special: the name of a task may contain brackets.
    glob = pattern.replace("[", "[[]").replace("?", "[?]")
    return fnmatchcase(task if ":" in pattern else task.replace(":", "."), glob)


def valid_pattern(where: str, pattern: object) -> str:
    """Returns a pattern of task names; raises ConfigurationError with the rule."""
    if not isinstance(pattern, str):
        raise ConfigurationError(
            f'{where} takes the pattern of task names first, like "shop.images.*", not {a_kind_of(pattern)}'
        )
    if not 0 < len(pattern) <= 256 or any(character.isspace() for character in pattern):
        raise ConfigurationError(
            f"{where}: {pattern[:80]!r} is not a pattern of task names: write shop.images.* or shop.images:resize, "
            "at most 256 characters"
        )
    return pattern


def hint(pattern: str, tasks: Iterable[str]) -> str:
    """For a pattern that matches no task: `: did you mean …?`, with a pattern or a task; or the known tasks."""
    known = list(tasks)
    whole = f"{pattern}.*"
    if any(matches(task, whole) for task in known):
        return f": did you mean {whole!r}?"
    return suggestion(pattern, known)
