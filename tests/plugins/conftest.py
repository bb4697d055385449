"""What tests of plugins need: an app with a Redis of its own."""

from __future__ import annotations

from tests.features.conftest import app, make_app, quiet, t

__all__ = ["app", "make_app", "quiet", "t"]
