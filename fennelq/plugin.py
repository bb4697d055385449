"""A plugin: everything that an extension brings to an app, in one value for `app.use`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, cast

from fennelq.errors import ConfigurationError
from fennelq.middleware import (
    Performer,
    Sender,
    Surrounder,
    is_async,
    name_of,
    performers_given,
    senders_given,
    surrounders_given,
    takes,
)
from fennelq.model.checks import valid_name
from fennelq.model.events import AnyEvent
from fennelq.subscribers import Subscriber, event_given, subscriber_given

if TYPE_CHECKING:
    from fennelq.app import App

Service = Callable[[], Awaitable[float]]


@dataclass(frozen=True, slots=True)
class Plugin:
    """An extension of an app: `app.use(Plugin("metrics", subscribers={JobFinished: count}))`."""

    name: str
    """Its name, once per app."""
    sending: Sequence[Sender] = ()
    """Functions as for `app.sending`."""
    performing: Sequence[Performer] = ()
    """Functions as for `app.performing`."""
    subscribers: Mapping[type[AnyEvent], Subscriber] = field(default_factory=dict[type[AnyEvent], Subscriber])
    """A function for each event, as for `app.on`."""
    services: Sequence[Service] = ()
    """`async def` functions that every executor calls again and again: each returns the seconds until its next call."""
    surrounding: Sequence[Surrounder] = ()
    """Functions that get the jobs of each call that sends jobs, and return a context manager around it."""

    def __post_init__(self) -> None:
        valid_name("plugin name", self.name)
        where = f"plugin {self.name}"
        senders_given(f"{where}: sending", self.sending)
        performers_given(f"{where}: performing", self.performing)
        surrounders_given(f"{where}: surrounding", self.surrounding)
        if not isinstance(cast("object", self.subscribers), Mapping):
            raise ConfigurationError(f"{where}: subscribers is a dict, like {{JobDied: note}}")
        for kind, subscriber in self.subscribers.items():
            event_given(f"{where}: subscribers", kind)
            subscriber_given(f"{where}: subscribers", subscriber)
        if not isinstance(cast("object", self.services), list | tuple):
            raise ConfigurationError(
                f"{where}: services is a list of async functions, not {name_of(self.services)}"
            )
        for service in self.services:
            if not is_async(service) or not takes(service, 0):
                raise ConfigurationError(
                    f"{where}: a service is an async function without arguments that returns the seconds until its "
                    f"next call, not {name_of(service)}"
                )


class PluginMaker(Protocol):
    """Makes its plugin when an app uses it, because the plugin needs the app."""

    def plugin(self, app: App) -> Plugin:
        """The plugin for this app."""
        ...


class Plugins:
    """The plugins of an app, by name."""

    def __init__(self) -> None:
        self._used: dict[str, Plugin] = {}

    def add(self, given: object, app: App) -> Plugin:
        """Note that this app uses it; raises ConfigurationError for the second plugin of a name, and for anything
        else."""
        if not isinstance(given, type) and callable(make := getattr(given, "plugin", None)):
            given = make(app)
        if not isinstance(given, Plugin):
            raise ConfigurationError(
                f"app.use takes a Plugin, not {name_of(given)}: write app.use(Plugin(…))"
            )
        if given.name in self._used:
            raise ConfigurationError(
                f"the plugin {given.name!r} is used twice: call app.use once for each plugin"
            )
        self._used[given.name] = given
        return given

    @property
    def services(self) -> list[tuple[str, Service]]:
        """The services of all plugins, each with a name for logs."""
        return [
            (f"{name}: {name_of(service)}", service)
            for name, plugin in self._used.items()
            for service in plugin.services
        ]
