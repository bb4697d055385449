"""The context of a trace as headers of a job: those of W3C Trace Context, and on request those of W3C Baggage.

Any client may write the headers of a job. So headers that do not follow the rules are dropped, and reading them never
raises.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, TraceFlags
from opentelemetry.trace.span import TraceState

from fennelq.plugins.opentelemetry.conventions import BAGGAGE, TRACEPARENT, TRACESTATE

_FIELDS: Final = "([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]([0-9a-f])"
_TRACEPARENT: Final = re.compile(f"00-{_FIELDS}")
_LATER_TRACEPARENT: Final = re.compile(f"(?!00|ff)[0-9a-f]{{2}}-{_FIELDS}(?:-.*)?")
"""Later versions may have more fields; version ff is not valid."""
_SAMPLED: Final = "13579bdf"
"""The last digits of the flags of a context that is sampled."""
_LONGEST_PARENT: Final = 256
"""Characters. Later versions may have more fields than the 55 characters of version 00."""
_LONGEST_STATE: Final = 512
_LONGEST_BAGGAGE: Final = 4096
_BYTES: Final = [f"{flags:02x}" for flags in range(256)]
_FLAGS: Final = (TraceFlags(0), TraceFlags(1))
_propagator: Final = W3CBaggagePropagator()


def written(context: SpanContext) -> dict[str, str]:
    """The headers for this context; none when it is not valid."""
    if not context.is_valid:
        return {}
    span = context.span_id.to_bytes(8).hex()
    headers = {TRACEPARENT: f"00-{trace_id(context)}-{span}-{_BYTES[context.trace_flags]}"}
    if (state := context.trace_state) and len(text := state.to_header()) <= _LONGEST_STATE:
        headers[TRACESTATE] = text
    return headers


def trace_id(context: SpanContext) -> str:
    """The id of the trace of this valid context, as in headers and logs."""
    return context.trace_id.to_bytes(16).hex()  # takes half of the time of a format


def read(headers: Mapping[str, str]) -> SpanContext | None:
    """The context in these headers; None without a valid one."""
    text = headers.get(TRACEPARENT)
    if text is None or len(text) > _LONGEST_PARENT:
        return None
    found = _TRACEPARENT.fullmatch(text) or _LATER_TRACEPARENT.fullmatch(text)
    if found is None:
        return None
    trace, span, flags = found.groups()
    state = _state(headers) if TRACESTATE in headers else None
    context = SpanContext(int(trace, 16), int(span, 16), True, _FLAGS[flags in _SAMPLED], state)
    return context if context.is_valid else None


def _state(headers: Mapping[str, str]) -> TraceState | None:
    text = headers.get(TRACESTATE)
    if not text or len(text) > _LONGEST_STATE:
        return None
    try:
        return TraceState.from_header([text])
    except Exception:
        return None


def baggage_written() -> dict[str, str]:
    """The baggage of the current context as headers."""
    headers: dict[str, str] = {}
    _propagator.inject(headers)
    return headers if len(headers.get(BAGGAGE, "")) <= _LONGEST_BAGGAGE else {}


def with_baggage(headers: Mapping[str, str], context: Context) -> Context:
    """The context with the baggage in these headers."""
    text = headers.get(BAGGAGE, "")
    if not text or len(text) > _LONGEST_BAGGAGE:
        return context
    try:
        return _propagator.extract({BAGGAGE: text}, context)
    except Exception:
        return context
