"""Hands the trace on, in which a client starts a run."""

import os
import sys
from typing import Any

from temporalio.client import Interceptor, OutboundInterceptor, StartWorkflowInput, WorkflowHandle

from .trace_context import HEADER, TraceContext


class HandOnTrace(Interceptor):
    """Puts the place of the program's current span into the headers of the runs that it starts.

    Without a span of OpenTelemetry's API that is the place which the environment names (TRACEPARENT, TRACESTATE).
    """

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - as the SDK calls it
        """The calls of a client, with the header."""
        return _Starts(next)


class _Starts(OutboundInterceptor):
    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:  # noqa: A002 - as the SDK
        if HEADER not in input.headers and (place := current_place()):
            input.headers = {**input.headers, HEADER: place.header()}
        return await super().start_workflow(input)


def current_place() -> TraceContext | None:
    """Where the program is in a trace, if it is in one. A program that has not loaded OpenTelemetry has no span."""
    if trace := sys.modules.get("opentelemetry.trace"):
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            sampled, state = bool(span.trace_flags & 1), span.trace_state.to_header()
            return TraceContext(f"{span.trace_id:032x}", f"{span.span_id:016x}", sampled, state)
    return TraceContext.in_carrier({name: os.environ.get(name.upper(), "") for name in ("traceparent", "tracestate")})
