"""All that the code of an app has injected: the parameters of its tasks, its lifespan, and what tests override."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fennelq.errors import ConfigurationError
from fennelq.injection.markers import Lifespan, Marker, Provider, provider_name
from fennelq.injection.recipe import Injection, Overrides, Recipe, Resolver
from fennelq.injection.signatures import ENTERED, ENTERED_ASYNC, markers_of, way_of
from fennelq.wording import a_kind_of, suggestion

if TYPE_CHECKING:
    from fennelq.app import App


class Injections:
    """The injected parameters of the tasks of one app."""

    def __init__(self, app: App, lifespan: Lifespan | None) -> None:
        self._app, self._lifespan = app, lifespan
        self._by_task: dict[str, Injection] = {}
        self._layers: list[Overrides] = []
        self._states: dict[str, Any] = {}
        """By executor: a process may have more than one, in tests."""
        self.lifespan: Recipe | None = None
        """How to make the value of the lifespan; it is the last one. None when the app has no lifespan."""
        if lifespan is not None:
            _check_lifespan(lifespan)
            self._resolve_lifespan()

    def of(self, task: str, function: Provider, *, process: bool = False) -> Injection | None:
        """The injected parameters of a task; None when it has none. Raises ConfigurationError when one cannot be
        filled."""
        markers = markers_of(function, (task,))
        if not markers:
            return None
        injection = Injection(task, function, markers, process=process)
        injection.resolve(self._overrides(), self._given())
        self._by_task[task] = injection
        return injection

    # Overrides

    def check(self, replaced: Overrides) -> None:
        """Raises ConfigurationError for something that is not a provider, and for a provider that no task uses: a test
        with a misspelt override would use the real one."""
        known = {provider for recipe in self._recipes() for provider in recipe.providers}
        for provider, other in replaced.items():
            if not callable(other):
                raise ConfigurationError(
                    f"overrides({{{_shown(provider)}: …}}) takes a provider, not {a_kind_of(other)}: "
                    f"for a value write {_shown(provider)}: lambda: value"
                )
            if provider not in known:
                hint = suggestion(_shown(provider), map(provider_name, known))
                raise ConfigurationError(
                    f"no task of {self._app.name} has the provider {_shown(provider)}{hint}. "
                    "Import the modules of the tasks before you override their providers"
                )

    @contextmanager
    def overridden(self, replaced: Overrides) -> Generator[None]:
        """Use other providers for the length of the block."""
        layer = dict(replaced)
        self._layers.append(layer)
        try:
            self._resolve_all()
            yield
        finally:
            self._layers = [other for other in self._layers if other is not layer]
            self._resolve_all()

    def _overrides(self) -> Overrides:
        return {provider: other for layer in self._layers for provider, other in layer.items()}

    def _given(self) -> dict[Provider, object]:
        """The lifespan, and what overrides it, get the app."""
        if self._lifespan is None:
            return {}
        return dict.fromkeys(
            (self._lifespan, self._overrides().get(self._lifespan, self._lifespan)), self._app
        )

    def _recipes(self) -> Iterable[Recipe]:
        recipes = [injection.recipe for injection in self._by_task.values()]
        return recipes if self.lifespan is None else [*recipes, self.lifespan]

    def _resolve_all(self) -> None:
        overrides, given = self._overrides(), self._given()
        for injection in self._by_task.values():
            injection.resolve(overrides, given)
        if self.lifespan is not None:
            self._resolve_lifespan()

    # Lifespan

    @property
    def state(self) -> Any:
        """The value of the lifespan that was entered last."""
        for state in reversed(self._states.values()):
            return state
        raise AttributeError(
            "app.state is the value of the lifespan, App(…, lifespan=…), and exists while an executor runs: "
            "there is none here"
        )

    def begin(self, executor: str, state: Any) -> None:
        """An executor has entered the lifespan."""
        self._states[executor] = state

    def end(self, executor: str) -> None:
        """An executor leaves the lifespan."""
        self._states.pop(executor, None)

    def _resolve_lifespan(self) -> None:
        assert self._lifespan is not None
        resolver = Resolver(self._overrides(), self._given())
        resolver.place(Marker(self._lifespan, shared=True), (f"the lifespan of {self._app.name}",))
        self.lifespan = resolver.recipe(())


def _check_lifespan(lifespan: object) -> None:
    if not callable(lifespan):
        raise ConfigurationError(f"lifespan= takes an async generator function, not {a_kind_of(lifespan)}")
    if way_of(lifespan)[1] not in (ENTERED, ENTERED_ASYNC):
        raise ConfigurationError(
            f"the lifespan {provider_name(lifespan)} is entered and left, so it is a generator: "
            "async def resources(app: App) -> AsyncIterator[Resources]: … yield Resources(…) …"
        )


def _shown(provider: object) -> str:
    return provider_name(provider) if callable(provider) else repr(provider)[:100]
