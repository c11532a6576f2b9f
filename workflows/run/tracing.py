"""Propagates the trace context of a run to its activities and child runs, and its spans to the worker."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.worker import (
    ContinueAsNewInput,
    Interceptor,
    StartActivityInput,
    StartChildWorkflowInput,
    StartLocalActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)
from temporalio.workflow import ActivityHandle, ChildWorkflowHandle

from ...contracts.trace import HEADER, SpanData, TraceContext
from ..state.constants import TAKE_SPANS
from ..state.run_trace import RunTrace
from .base import BaseWorkflow

Headers = Mapping[str, Payload]


class TracedWorkflows(Interceptor):
    """Writes the trace header of Temporal's SDKs, which replay does not compare.

    ``take`` takes the spans of runs. It is called in workflow threads and must not raise.
    """

    def __init__(self, take: Callable[[Sequence[SpanData]], None]) -> None:
        self._take = take

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:  # noqa: A002
        """The interceptor class for runs."""
        input.unsafe_extern_functions[TAKE_SPANS] = self._take
        return _Inbound


class _Inbound(WorkflowInboundInterceptor):
    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(_Outbound(outbound))


class _Outbound(WorkflowOutboundInterceptor):
    def start_activity(self, input: StartActivityInput) -> ActivityHandle[Any]:  # noqa: A002 - the SDK's name
        input.headers = _with(input.headers, _here())
        return super().start_activity(input)

    def start_local_activity(self, input: StartLocalActivityInput) -> ActivityHandle[Any]:  # noqa: A002
        input.headers = _with(input.headers, _here())
        return super().start_local_activity(input)

    async def start_child_workflow(self, input: StartChildWorkflowInput) -> ChildWorkflowHandle[Any, Any]:  # noqa: A002
        input.headers = _with(input.headers, _here())
        return await super().start_child_workflow(input)

    def continue_as_new(self, input: ContinueAsNewInput) -> NoReturn:  # noqa: A002 - the SDK's name
        trace = _trace()
        input.headers = _with(input.headers, trace.origin if trace else None)
        super().continue_as_new(input)
        raise AssertionError("it always raises")


def _trace() -> RunTrace | None:
    run = workflow.instance()
    return run.run_state.trace if isinstance(run, BaseWorkflow) else None


def _here() -> TraceContext | None:
    trace = _trace()
    return trace.here if trace else None


def _with(headers: Headers, place: TraceContext | None) -> Headers:
    return {**headers, HEADER: place.header()} if place else headers
