"""Reads pages of metrics."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Mapping

from fennelq.model.metrics import OF_REDIS, OF_WORKERS

_SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_COUNTERS = {metric.name for metric in (*OF_WORKERS, *OF_REDIS) if metric.kind == "counter"}

Samples = Mapping[str, float]
"""A sample as it is written, with its labels → value."""


def scraped(port: int, timeout: float = 5.0) -> Samples:
    """The samples of the page on this port."""
    return samples_of(page_of(port, timeout))


def page_of(port: int, timeout: float = 5.0) -> str:
    """The page on this port."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=timeout) as reply:
        assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        text: str = reply.read().decode()
        return text


def samples_of(page: str) -> Samples:
    """The samples of a page."""
    found: dict[str, float] = {}
    for line in page.splitlines():
        if not line.startswith("#"):
            sample, _, value = line.rpartition(" ")
            assert _SAMPLE.fullmatch(line), line
            assert sample not in found
            found[sample] = float(value)
    return found


def total(samples: Samples, name: str, **labels: str) -> float:
    """The sum of all samples of this name with these labels."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(
        value
        for sample, value in samples.items()
        if sample.partition("{")[0] == name and all(one in sample for one in wanted)
    )


def fallen(before: Samples, after: Samples) -> dict[str, tuple[float, float | None]]:
    """The counters and histograms that are lower than before, or gone."""
    return {
        sample: (value, after.get(sample))
        for sample, value in before.items()
        if _only_rises(sample) and (sample not in after or after[sample] < value)
    }


def _only_rises(sample: str) -> bool:
    name = sample.partition("{")[0]
    return name in _COUNTERS or name.endswith(("_bucket", "_sum", "_count"))
