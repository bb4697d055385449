"""The setting `history_url`: where the history is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fennelq.errors import ConfigurationError

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.manage.history.store import Store


def open_store(app: App, url: str | None = None) -> Store:
    """The store of an app's history; it connects when it is first used. Raises ConfigurationError when none is
    configured."""
    url = url or app.settings.history_url
    if url is None:
        raise ConfigurationError(
            "this app has no history: set history_url, for example FENNELQ_HISTORY_URL=sqlite:///var/lib/shop/history.db"
        )
    if url.startswith("sqlite:"):
        from fennelq.manage.history.sqlite import SqliteStore

        return SqliteStore(Path("/" + url.removeprefix("sqlite:").lstrip("/")), app.namespace)
    from fennelq.manage.history.postgres import PostgresStore

    return PostgresStore(url, app.namespace)
