"""Gives Redis more time to reply than users have: a busy machine must not look like an absent Redis."""

from __future__ import annotations

import sys
from typing import Any, Final

import pytest

_CONSTANTS: Final = ("PATIENCE", "_PATIENCE", "QUICK")
_SECONDS: Final = 20.0


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dashboard, the HTTP API and gRPC wait for Redis for 20 seconds, in place of less than one."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("fennelq.web.", "fennelq.grpc.")):
            _prolong(monkeypatch, module, vars(module))


def _prolong(monkeypatch: pytest.MonkeyPatch, module: Any, known: dict[str, Any]) -> None:
    for constant in _CONSTANTS:
        if constant in known:
            monkeypatch.setattr(module, constant, max(known[constant], _SECONDS))
    if "ROUTES" in known:
        rows = [row._replace(patience=max(row.patience, _SECONDS)) for row in known["ROUTES"]]
        monkeypatch.setattr(module, "ROUTES", tuple(rows))
