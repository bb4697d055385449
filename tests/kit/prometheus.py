"""A real Prometheus: its own process, its own port, its own directory."""

from __future__ import annotations

import json
import shutil
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.kit.ports import HOST, Port
from tests.kit.spawn import Process
from tests.kit.waiting import eventually

MISSING = (
    "prometheus and promtool are not on PATH: install them with `apt-get install prometheus` (.ci/run does)"
)


def is_installed() -> bool:
    """Whether this machine can run one."""
    return bool(shutil.which("prometheus") and shutil.which("promtool"))


class Prometheus:
    """Scrapes these targets once a second, from its start to the end of the block."""

    def __init__(self, folder: Path, targets: Mapping[str, int], rules: Path | None = None) -> None:
        """`targets` are ports of this machine by the name of the job."""
        self._folder, self._port = folder, Port()
        folder.mkdir()
        jobs = [
            {"job_name": name, "static_configs": [{"targets": [f"{HOST}:{port}"]}]}
            for name, port in targets.items()
        ]
        every = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        config = {"global": every, "rule_files": [str(rules)] if rules else [], "scrape_configs": jobs}
        (folder / "prometheus.yml").write_text(json.dumps(config))  # YAML includes JSON
        self._process: Process | None = None

    def query(self, expression: str) -> list[Any]:
        """The result of a query now; raises HTTPError for one that it does not understand."""
        answer = self._get("query", query=expression)
        assert answer["status"] == "success"
        found: list[Any] = answer["data"]["result"]
        return found

    def value(self, expression: str) -> float:
        """The value of a query with a single result."""
        (one,) = self.query(expression)
        return float(one["value"][1])

    def targets(self) -> dict[str, str]:
        """Job → whether its last scrape has succeeded: `up`, `down` or `unknown`."""
        active = self._get("targets")["data"]["activeTargets"]
        return {one["labels"]["job"]: one["health"] for one in active}

    def rules(self) -> list[dict[str, Any]]:
        """The alerts, each with its health."""
        groups = self._get("rules")["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def _get(self, what: str, **parameters: str) -> Any:
        words = urllib.parse.urlencode(parameters)
        url = f"http://{HOST}:{self._port.number}/api/v1/{what}?{words}"
        with urllib.request.urlopen(url, timeout=10) as reply:
            return json.load(reply)

    def __enter__(self) -> Self:
        folder = self._folder
        # It listens without SO_REUSEADDR's permission to share a port that another socket holds.
        self._port.release()
        self._process = Process(
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={HOST}:{self._port.number}",
            "--log.level=warn",
            output=folder / "log",
            directory=folder,
        )
        eventually(self.targets, tolerate=(OSError,), within=20)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        if error is not None:
            print(self._process.tail())
        self._process.close()
