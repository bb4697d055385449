"""A module with other functions, for one module that imports it."""

from __future__ import annotations

from types import ModuleType
from typing import Any


class Namespace:
    """`monkeypatch.setattr("fennelq.waiting.waiting.asyncio", Namespace(asyncio, sleep=noted))`: everything else of the
    module is as before, and other modules do not notice."""

    def __init__(self, module: ModuleType, **others: Any) -> None:
        self._module = module
        vars(self).update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
