# shop/queue.py
import os
from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, TypeVar, cast

import django
from asgiref.sync import sync_to_async
from django.apps import apps
from django.db import close_old_connections

from fennelq import App

F = TypeVar("F", bound=Callable[..., Any])

app = App("shop")


def with_database(function: F) -> F:
    """Close old and broken database connections before and after each job, as Django does for each request."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        close_old_connections()
        try:
            return function(*args, **kwargs)
        finally:
            close_old_connections()

    @wraps(function)
    async def run_async(*args: Any, **kwargs: Any) -> Any:
        # The ORM's async methods use a thread, so its connections are closed in that thread.
        await sync_to_async(close_old_connections)()
        try:
            return await function(*args, **kwargs)
        finally:
            await sync_to_async(close_old_connections)()

    return cast("F", run_async if iscoroutinefunction(function) else run)


# A worker imports this module first, so this module must set Django up. In a web process and in manage.py, Django is
# being set up already. This is at the end, because `django.setup()` imports the tasks, and they import `app` from here.
if not apps.loading:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    django.setup()
