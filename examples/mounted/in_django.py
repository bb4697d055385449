"""Django, or any other ASGI application: `uvicorn examples.mounted.in_django:web`. In a project, this is `asgi.py`."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path

from examples.mounted.shop import jobs, programs


def home(_: HttpRequest) -> HttpResponse:
    """A page of the application itself."""
    return HttpResponse("the shop")


urlpatterns = [path("", home)]

if not settings.configured:  # a project has a module for this
    settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="not a secret")
django: Any = get_asgi_application()

web = jobs.below("/jobs", otherwise=programs.below("/programs", otherwise=django))
