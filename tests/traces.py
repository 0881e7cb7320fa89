"""A collector of traces: a fixture that modules import."""

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from telemetry.traces import stop_traces
from tests.http_server import Answer, Request, answering


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The spans that a collector on loopback got, complete after `stop_traces`."""
    spans: list[Any] = []

    def take(sent: Request) -> Answer:
        body = ExportTraceServiceRequest.FromString(sent.body.encode("utf-8", "surrogateescape"))
        spans.extend(span for of in body.resource_spans for scope in of.scope_spans for span in scope.spans)
        return Answer()

    with answering({"/v1/traces": take}) as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        yield spans
        stop_traces()


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: one.value.string_value or one.value.int_value for one in span.attributes}
