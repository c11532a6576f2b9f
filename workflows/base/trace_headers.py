"""Hands the place in a trace on: from a run to its activities, its children and the run that continues it."""

from collections.abc import Mapping
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

from ...conversation.temporal.trace_context import HEADER, TraceContext
from ..state.run_trace import RunTrace
from .base_workflow import BaseWorkflow

Headers = Mapping[str, Payload]


class TraceHeaders(Interceptor):
    """Writes the header of Temporal's SDKs. Headers are no part of what a replay compares."""

    def workflow_interceptor_class(self, _input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        """The interceptor of each run."""
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
        input.headers = _with(input.headers, trace.given if trace else None)
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
