"""Traces: from the call that asks for a job through the queue to each stage of its attempts.

Invariant: without an endpoint that OpenTelemetry's variables name, nothing of its SDK is loaded and nothing
is sent; what a caller gives is passed on all the same, so that logs name its trace.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

Attributes = Mapping[str, str | int]
HEADER = "traceparent"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_given: ContextVar[str | None] = ContextVar("given_traceparent", default=None)


class _Process:
    provider: TracerProvider | None = None
    tracer: Tracer | None = None


def start_traces(name: str) -> TracerProvider | None:
    """Send spans of this process from now on, by OTLP over HTTP; None if no endpoint is set.

    name: of the service, unless OTEL_SERVICE_NAME gives another. Further variables of OpenTelemetry hold,
    such as OTEL_EXPORTER_OTLP_HEADERS and OTEL_TRACES_SAMPLER.
    """
    is_disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if _Process.provider is not None or is_disabled or not any(map(os.environ.get, _ENDPOINTS)):
        return _Process.provider
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    about = {
        "service.name": os.environ.get("OTEL_SERVICE_NAME", name),
        "service.version": version("icestream"),
    }
    provider = TracerProvider(resource=Resource.create(about))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    _Process.provider, _Process.tracer = provider, provider.get_tracer("icestream")
    return provider


def stop_traces() -> None:
    """Send what was not sent yet, and nothing any more."""
    provider, _Process.provider, _Process.tracer = _Process.provider, None, None
    if provider is not None:
        provider.shutdown()


def adopt(traceparent: str | None) -> None:
    """Note what the caller of this request gave, for a process that sends no spans itself."""
    _given.set(traceparent if trace_id_of(traceparent) else None)


def current_traceparent() -> str | None:
    """Of the span that is open here, as W3C's Trace Context writes it; or what the caller gave."""
    if _Process.tracer is None:
        return _given.get()
    from opentelemetry.trace import get_current_span

    return _traceparent(get_current_span())


def trace_id_of(traceparent: str | None) -> str | None:
    """None for what is no `traceparent`, and for none."""
    match = _TRACEPARENT.fullmatch(traceparent or "")
    return match[1] if match else None


@contextmanager
def span(name: str, traceparent: str | None = None, **attributes: str | int) -> Iterator[Span | None]:
    """What happens meanwhile, as a part of the span that is open here or that `traceparent` names.

    An exception marks it as failed, without its text, which may hold what is nobody's business.
    """
    if _Process.tracer is None:
        yield None
        return
    from opentelemetry.trace import StatusCode, use_span

    opened = _Process.tracer.start_span(name, _context(traceparent), attributes=_own(attributes))
    with use_span(opened, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield opened
        except BaseException as error:
            opened.set_status(StatusCode.ERROR, type(error).__name__)
            raise


def mark(opened: Span | None, outcome: str) -> None:
    """Say how what a span is about ended."""
    if opened is None:
        return
    from opentelemetry.trace import StatusCode

    opened.set_attribute("icestream.outcome", outcome)
    if outcome == "failed":
        opened.set_status(StatusCode.ERROR)


def record_span(
    name: str, traceparent: str | None, started_at: datetime, ended_at: datetime, **attributes: str | int
) -> None:
    """Something that is over, as a part of what `traceparent` names."""
    if _Process.tracer is None or traceparent is None:
        return
    start, end = (int(at.timestamp() * 1e9) for at in (started_at, ended_at))
    over = _Process.tracer.start_span(
        name, _context(traceparent), attributes=_own(attributes), start_time=min(start, end)
    )
    over.end(end)


def begin_trace(name: str) -> str | None:
    """A trace of what nobody asked for: its beginning, of which all else is a part; None if none is sent."""
    with span(name):
        return current_traceparent()


def _context(traceparent: str | None) -> Context | None:
    """None for what is current."""
    if trace_id_of(traceparent) is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({HEADER: traceparent or ""})


def _traceparent(opened: Span) -> str | None:
    about = opened.get_span_context()
    if not about.is_valid:
        return None
    return f"00-{about.trace_id:032x}-{about.span_id:016x}-{int(about.trace_flags):02x}"


def _own(attributes: Attributes) -> dict[str, str | int]:
    return {f"icestream.{name}": value for name, value in attributes.items()}
