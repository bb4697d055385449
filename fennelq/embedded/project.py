"""Finds the project that the code of this process belongs to, and the platform on which it was deployed."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP = Path("/proc/self/cgroup")


def project_root(start: Path) -> Path:
    """The nearest directory from `start` upward with a pyproject.toml or .git; otherwise the directory of `start`."""
    start = start.resolve()
    here = start if start.is_dir() else start.parent
    for directory in (here, *here.parents):
        if (directory / "pyproject.toml").is_file() or (directory / ".git").exists():
            return directory
    return here


def recognised_deployment() -> str | None:
    """The platform on which this process was deployed, if a private server would surely be a mistake there; else
    None."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "Kubernetes"
    if "ECS_CONTAINER_METADATA_URI_V4" in os.environ or "ECS_CONTAINER_METADATA_URI" in os.environ:
        return "ECS"
    if "DYNO" in os.environ:
        return "Heroku"
    return "systemd" if _is_systemd_service() else None


def _is_systemd_service() -> bool:
    """INVOCATION_ID alone is not enough: a desktop session passes its own on to every terminal in it.

    The control group distinguishes a service (`shop.service`) from a terminal, a login and an application
    (`session-2.scope`, `vte-spawn-….scope`, `app-….service`).
    """
    if "INVOCATION_ID" not in os.environ:
        return False
    try:
        units = [line.rpartition("/")[2] for line in CGROUP.read_text().splitlines()]
    except OSError:
        return True
    return any(unit.endswith(".service") and not unit.startswith("app-") for unit in units)
