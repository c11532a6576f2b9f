"""Signals that reach a run at a moment that no client could choose."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from temporalio import workflow
from temporalio.client import Client
from temporalio.client import Interceptor as ClientInterceptor
from temporalio.worker import Interceptor as WorkerInterceptor
from temporalio.worker import (
    StartChildWorkflowInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)
from temporalio.workflow import ChildWorkflowHandle

from tests.harness.environment import Json


class SignalWhileAChildStarts(ClientInterceptor, WorkerInterceptor):
    """Sends a signal to each run that starts a child of one type, in the workflow task that starts it.

    ``client`` is that of the worker to observe.
    """

    def __init__(self, client: Client, workflow_type: str, signal: str, value: Json) -> None:
        self.client = Client(
            client.service_client, namespace=client.namespace, data_converter=client.data_converter, interceptors=[self]
        )
        self._type = workflow_type
        self._signal = signal
        self._value = value

    def _send(self, run: str) -> None:
        """Returns once Temporal has received the signal. It has a loop of its own: the worker's waits for this task."""

        async def send() -> None:
            client = await Client.connect(self.client.service_client.config.target_host)
            await client.get_workflow_handle(run).signal(self._signal, self._value)

        with ThreadPoolExecutor() as threads:
            threads.submit(asyncio.run, send()).result()

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002 - the SDK's name
    ) -> type[WorkflowInboundInterceptor]:
        signals = self

        class Outbound(WorkflowOutboundInterceptor):
            async def start_child_workflow(self, input: StartChildWorkflowInput) -> ChildWorkflowHandle[Any, Any]:  # noqa: A002
                if input.workflow == signals._type and not workflow.unsafe.is_replaying():
                    signals._send(workflow.info().workflow_id)
                return await super().start_child_workflow(input)

        class Inbound(WorkflowInboundInterceptor):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                super().init(Outbound(outbound))

        return Inbound
