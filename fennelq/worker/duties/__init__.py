"""Background duties of an executor. Each is a Service with a tick(), and has a file and a line in this table.

The other files of this folder are parts of one duty: `declaring` of the ticker, `unserved` of presence.
"""

from __future__ import annotations

from typing import Final

from fennelq.worker.duties.courier import Courier
from fennelq.worker.duties.janitor import Janitor
from fennelq.worker.duties.listener import Listener
from fennelq.worker.duties.mender import Mender
from fennelq.worker.duties.meter import Meter
from fennelq.worker.duties.metrics import Metrics
from fennelq.worker.duties.presence import Presence
from fennelq.worker.duties.promoter import Promoter
from fennelq.worker.duties.recovery import Recovery
from fennelq.worker.duties.recycler import Recycler
from fennelq.worker.duties.service import Service
from fennelq.worker.duties.speculator import Speculator
from fennelq.worker.duties.ticker import Ticker

DUTIES: Final[tuple[type[Service], ...]] = (
    Presence,
    Listener,
    Promoter,
    Ticker,
    Courier,
    Recovery,
    Mender,
    Recycler,
    Janitor,
    Meter,
    Metrics,
    Speculator,
)
