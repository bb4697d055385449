"""The values that the injected parameters of a task need, as a flat list in the order in which they are made.

The list is made when the task is registered, and again while `app.overrides` replaces providers. A worker only walks
it, for every job.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from fennelq.errors import ConfigurationError
from fennelq.injection.markers import Injected, Marker, Provider, provider_name
from fennelq.injection.signatures import (
    AWAITED,
    ENTERED,
    ENTERED_ASYNC,
    Path,
    as_marker,
    check_filled,
    check_hashable,
    markers_of,
    parameters_of,
    way_of,
)

Overrides = Mapping[Provider, Provider]
"""Provider → the one to use in its place."""
Given = Mapping[Provider, object]
"""Provider → the value of its first parameter."""


class Step(NamedTuple):
    """A value to be made."""

    make: Callable[..., Any]
    how: int
    """One of the ways in `signatures`."""
    needs: tuple[tuple[str, int], ...]
    """The name of each argument, and the place of its value."""
    key: Hashable | None
    """Under which an executor keeps a shared value; None for a value of one job."""
    path: Path

    @property
    def name(self) -> str:
        """The provider, for messages."""
        return self.path[-1]

    @property
    def is_for_loop(self) -> bool:
        """Whether it is made on the loop also for a `def` task."""
        return self.how in (AWAITED, ENTERED_ASYNC) or self.key is not None


class Recipe(NamedTuple):
    """How to make the values of one function."""

    on_loop: tuple[Step, ...]
    """Made on the loop: all values of an `async def` task."""
    in_thread: tuple[Step, ...]
    """Made in the thread of a `def` task, after those on the loop. Their places count on."""
    passed: tuple[tuple[str, int], ...]
    """Each injected parameter, and the place of its value."""
    providers: frozenset[Provider]
    """The providers, without what overrides them."""
    enters: bool
    """Whether a value is entered, and must be left."""
    is_direct: bool
    """Whether no value is left, and all are made on the loop, like those of most `async def` tasks."""


class Injection:
    """The injected parameters of one function."""

    recipe: Recipe

    def __init__(
        self, owner: str, function: Provider, markers: Mapping[str, Marker], *, process: bool = False
    ) -> None:
        """`process` means that the function runs in a process without a loop."""
        self._owner, self._process, self._markers = owner, process, markers
        self._signature = inspect.signature(function)
        self._is_async = inspect.iscoroutinefunction(function)
        self.names = tuple(markers)
        """The injected parameters. They are not arguments of a job."""
        self.in_between = _in_between(self._signature, self.names)
        """The injected parameters that are passed by their places, because other arguments may be passed after them."""

    def resolve(self, overrides: Overrides, given: Given) -> None:
        """Find out how to make the values. Raises ConfigurationError when a provider cannot be called."""
        resolver = Resolver(overrides, given)
        passed = [(name, resolver.place(marker, (self._owner,))) for name, marker in self._markers.items()]
        if self._process:
            resolver.refuse_async()
        self.recipe = resolver.recipe(passed, is_async=self._is_async, has_loop=not self._process)

    def arguments(
        self, recipe: Recipe, args: tuple[Any, ...], kwargs: Mapping[str, Any], values: list[Any]
    ) -> tuple[Iterable[Any], dict[str, Any]]:
        """The arguments of a call, with the values."""
        named = {**kwargs}
        for name, at in recipe.passed:  # not a comprehension, which costs a call until Python 3.12
            named[name] = values[at]
        if not self.in_between:
            return args, named
        placed = [*args]
        for place, name in self.in_between:
            if len(placed) >= place:
                placed.insert(place, named.pop(name))
        return placed, named

    def check_plain_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raises TypeError when a call without a worker leaves out an injected parameter."""
        try:
            given = self._signature.bind_partial(*args, **kwargs).arguments
        except TypeError:
            return  # Python refuses the call itself
        for name in self.names:
            default = self._signature.parameters[name].default
            has_value = not isinstance(default, Injected) and as_marker(default) is None
            if name not in given and not (has_value and default is not inspect.Parameter.empty):
                function = self._owner.rpartition(":")[2]
                raise TypeError(
                    f"{function}() is missing {name!r}, which only a worker injects: "
                    f"pass it to a plain call, {function}(…, {name}=…)"
                )


class Resolver:
    """Puts the values that some parameters need in an order, each provider once."""

    def __init__(self, overrides: Overrides, given: Given) -> None:
        self._overrides, self._given = overrides, given
        self._steps: list[Step] = []
        self._places: dict[tuple[Provider, bool], int] = {}
        self._providers: set[Provider] = set()
        self._above: list[Provider] = []

    def place(self, marker: Marker, path: Path) -> int:
        """The place of this value, after those that it needs."""
        check_hashable(marker.provider, path)
        self._providers.add(marker.provider)
        provider = self._overrides.get(marker.provider, marker.provider)
        path = (*path, provider_name(provider))
        if provider in self._above:
            raise ConfigurationError(f"{' → '.join(path)}: a provider cannot need its own value")
        place = self._places.get((provider, marker.shared))
        if place is None:
            self._steps.append(self._step(provider, path, shared=marker.shared))
            place = self._places[provider, marker.shared] = len(self._steps) - 1
        return place

    def refuse_async(self) -> None:
        """Raises ConfigurationError for a provider that needs a loop."""
        for step in self._steps:
            if step.how in (AWAITED, ENTERED_ASYNC):
                raise ConfigurationError(
                    f'{" → ".join(step.path)}: this provider is async, and a task with isolation="process" runs in a '
                    "process without an event loop: make it a def"
                )

    def recipe(
        self, passed: Iterable[tuple[str, int]], *, is_async: bool = True, has_loop: bool = True
    ) -> Recipe:
        """The values in their order; those for the loop first, if the function is not async."""
        loop = set(range(len(self._steps))) if is_async else self._for_loop() if has_loop else set[int]()
        order = sorted(range(len(self._steps)), key=lambda place: place not in loop)
        place = {old: new for new, old in enumerate(order)}
        steps = [
            step._replace(needs=tuple((name, place[at]) for name, at in step.needs))
            for step in map(self._steps.__getitem__, order)
        ]
        on_loop, in_thread = tuple(steps[: len(loop)]), tuple(steps[len(loop) :])
        enters = any(step.key is None and step.how in (ENTERED, ENTERED_ASYNC) for step in steps)
        return Recipe(
            on_loop,
            in_thread,
            tuple((name, place[at]) for name, at in passed),
            frozenset(self._providers),
            enters,
            is_direct=is_async and not enters,
        )

    def _step(self, provider: Provider, path: Path, *, shared: bool) -> Step:
        markers = markers_of(provider, path)
        make, how = way_of(provider)
        filled: Mapping[str, object] = markers
        if provider in self._given and (first := _first_of(provider, markers)) is not None:
            make, filled = partial(make, self._given[provider]), {**markers, first: None}
        check_filled(provider, path, filled)
        self._above.append(provider)
        needs = tuple((name, self._needed(marker, path, shared=shared)) for name, marker in markers.items())
        self._above.pop()
        # A shared value that is made of others is another one while these are overridden.
        key = (provider, *(self._steps[at].key for _, at in needs)) if shared else None
        return Step(make, how, needs, key, path)

    def _needed(self, marker: Marker, path: Path, *, shared: bool) -> int:
        if shared and not marker.shared:
            raise ConfigurationError(
                f"{' → '.join(path)}: a Shared value outlives the job, so it cannot need {marker!r}, "
                f"which is made for one job: write Shared({provider_name(marker.provider)})"
            )
        return self.place(marker, path)

    def _for_loop(self) -> set[int]:
        """The places of the values that are made on the loop, also for a `def` function: those of async providers, and
        what these need."""
        found: set[int] = set()
        for place in reversed(range(len(self._steps))):
            step = self._steps[place]
            if step.is_for_loop or place in found:
                found |= {place, *(at for _, at in step.needs)}
        return found


def _first_of(provider: Provider, markers: Mapping[str, Marker]) -> str | None:
    """The first parameter, unless it is injected."""
    first = next((parameter.name for parameter in parameters_of(provider)), None)
    return None if first in markers else first


def _in_between(signature: inspect.Signature, names: Iterable[str]) -> tuple[tuple[int, str], ...]:
    """The injected parameters before the last one that an argument may fill by its place, and their own places."""
    by_place = [parameter for parameter in signature.parameters.values() if parameter.kind in _BY_PLACE]
    last = max((at for at, parameter in enumerate(by_place) if parameter.name not in names), default=-1)
    return tuple((at, one.name) for at, one in enumerate(by_place[: last + 1]) if one.name in names)


_BY_PLACE = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)
