"""An OpenTelemetry collector for the tests: takes metrics over HTTP, and keeps the latest value of each series."""

import contextlib
from collections.abc import Iterator
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from baton.starter.scripted_model import serve_in_thread


class Collector:
    """What it has received: headers, resources, and the names of metrics with their data as protobuf has it."""

    def __init__(self) -> None:
        self.headers = dict[str, str]()
        self.resource = dict[str, str]()
        self.metrics = dict[str, Any]()

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        """Takes metrics while the block runs; yields its address."""
        with serve_in_thread(Starlette(routes=[Route("/v1/metrics", self._take, methods=["POST"])])) as url:
            yield url

    async def _take(self, request: Request) -> Response:
        sent = ExportMetricsServiceRequest.FromString(await request.body())
        self.headers = dict(request.headers)
        for each in sent.resource_metrics:
            self.resource = {label.key: label.value.string_value for label in each.resource.attributes}
            for scope in each.scope_metrics:
                self.metrics |= {metric.name: metric for metric in scope.metrics}
        return Response()
