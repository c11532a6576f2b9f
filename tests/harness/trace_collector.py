"""A collector of traces: an HTTP server that takes what OTLP exporters send, as OpenTelemetry's protocol defines it."""

import asyncio
import contextlib
import gzip
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from baton.starter.scripted_model import serve_in_thread

Tree = dict[str, Any]
"""The names of the spans below a span, with what is below each; several of one name have a number."""


@dataclass
class CollectedSpan:
    """A span that has come. ``parent`` is empty for a root."""

    trace: str
    id: str
    parent: str
    name: str
    kind: int
    start: int
    end: int
    error: bool
    attributes: dict[str, Any]


@dataclass
class TraceCollector:
    """Keeps every span that has come, in its order, also those that came twice. While it ``is_deaf``, it takes nothing.

    ``asked`` counts the requests, also those that it has not taken. It refuses what has a span named ``refused``.
    """

    received: list[CollectedSpan] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    url: str = ""
    is_deaf: bool = False
    asked: int = 0
    refused: str = ""

    @contextlib.contextmanager
    def serve(self) -> Iterator[str]:
        """Serves while the block runs; gives the address for OTEL_EXPORTER_OTLP_ENDPOINT."""
        with serve_in_thread(Starlette(routes=[Route("/v1/traces", self._take, methods=["POST"])])) as url:
            self.url = url
            yield url

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a worker that sends its traces here."""
        quick = {"OTEL_BSP_SCHEDULE_DELAY": "20"}
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_SERVICE_NAME": "tested", **quick}

    async def _take(self, request: Request) -> Response:
        self.asked += 1
        while self.is_deaf:
            await asyncio.sleep(0.02)
            if await request.is_disconnected():
                return Response(status_code=503)
        body = await request.body()
        body = gzip.decompress(body) if request.headers.get("content-encoding") == "gzip" else body
        self.bodies.append(body)
        message = ExportTraceServiceRequest.FromString(body)
        spans = [span for resource in message.resource_spans for scope in resource.scope_spans for span in scope.spans]
        if self.refused in [span.name for span in spans]:
            return Response(status_code=400)
        self.received += map(_collected, spans)
        return Response(ExportTraceServiceResponse().SerializeToString(), media_type="application/x-protobuf")

    @property
    def spans(self) -> list[CollectedSpan]:
        """The spans as a backend keeps them: each id once."""
        return [*{(span.trace, span.id): span for span in self.received}.values()]

    def repeated(self) -> dict[str, int]:
        """How often each id has come that has come more than once."""
        return {id_: count for id_, count in Counter(span.id for span in self.received).items() if count > 1}

    def named(self, name: str) -> list[CollectedSpan]:
        """The spans whose name begins so."""
        return [span for span in self.spans if span.name.startswith(name)]

    def tree(self, parent: str = "") -> Tree:
        """The tree of the spans, by their names, in the order in which they began."""
        below = sorted((span for span in self.spans if span.parent == parent), key=lambda span: span.start)
        tree: Tree = {}
        for span in below:
            same = sum(name == span.name or name.startswith(f"{span.name} #") for name in tree)
            tree[f"{span.name} #{same + 1}" if same else span.name] = self.tree(span.id)
        return tree


def _collected(span: Span) -> CollectedSpan:
    return CollectedSpan(
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        name=span.name,
        kind=span.kind,
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        error=span.status.code == 2,
        attributes={attribute.key: _value(attribute.value) for attribute in span.attributes},
    )


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None
