"""Makes the parts by which an app and its executors reach Redis. They all come from here, so that `fennelq.testing` can
put others in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fennelq.broker.broker import Broker
from fennelq.client import Client

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.broker.blocking import BlockingBroker
    from fennelq.broker.connection import Address


class Wiring:
    """The usual parts."""

    def client(self, app: App) -> Client:
        """The sending side for one event loop."""
        return Client(app)

    def broker(self, address: Address) -> Broker:
        """Runs verbs on an event loop."""
        return Broker(address)

    def blocking(self, address: Address) -> BlockingBroker:
        """Runs verbs without an event loop."""
        from fennelq.broker.blocking import BlockingBroker

        return BlockingBroker(address)
