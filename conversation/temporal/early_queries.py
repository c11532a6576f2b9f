"""Asks a query again that came before the events which it would answer from."""

import asyncio
from typing import Any

from temporalio.client import Interceptor, OutboundInterceptor, QueryWorkflowInput, WorkflowQueryFailedError

EARLY_QUERY = "the query came before a workflow task had begun on the latest events: ask again"
"""What a worker refuses such a query with."""

_TIMES, _INTERVAL = 50, 0.2


class AskAgain(Interceptor):
    """Asks an early query again, up to 50 times within 10 seconds and the time that the answers take."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - as the SDK calls it
        """The calls of a client, with queries asked again."""
        return _Queries(next)


class _Queries(OutboundInterceptor):
    async def query_workflow(self, input: QueryWorkflowInput) -> Any:  # noqa: A002 - as the SDK calls it
        for _ in range(_TIMES):
            try:
                return await super().query_workflow(input)
            except WorkflowQueryFailedError as error:
                if EARLY_QUERY not in str(error):
                    raise
            await asyncio.sleep(_INTERVAL)
        return await super().query_workflow(input)
