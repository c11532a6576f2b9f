"""The connection to Temporal of what belongs to a worker of an application, which may replace its client."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from google.protobuf.message import Message
from temporalio.client import Client
from temporalio.service import ServiceClient
from temporalio.worker import Worker

from ..contracts.settings import check_private_names

FOLLOW_INTERVAL = 1.0
"""Seconds between two looks whether the application has replaced the client: the SDK tells nobody."""

T = TypeVar("T", bound=Message)


class WorkerConnection(ServiceClient):
    """The connection of the client that a worker has now; ``first`` until it is known which worker that is.

    An application replaces it with ``worker.client = …``, for example because the key of the first one ends.
    """

    def __init__(self, first: ServiceClient) -> None:
        check_private_names("temporalio", first, ["_rpc_call"])
        super().__init__(first.config)
        self._first = first
        self._worker: Worker | None = None

    def of(self, client: Client) -> Client:
        """The same client with this connection."""
        config = client.config(active_config=True)
        config["service_client"] = self
        config["plugins"] = []  # already applied: the active configuration is their result
        return Client(**config)

    def follow(self, worker: Worker) -> None:
        """From now on, this is the connection of the worker's client."""
        self._worker = worker

    async def lead(self, workers: Sequence[Worker]) -> None:
        """Lets workers whose clients have this connection poll with each new one. Does not end."""
        known = self._current
        while True:
            await asyncio.sleep(FOLLOW_INTERVAL)
            if self._current is not known:
                known = self._current
                for worker in workers:
                    worker.client = worker.client  # the SDK takes the connection out of it

    @property
    def _current(self) -> ServiceClient:
        now = self._worker.client.service_client if self._worker else self
        return self._first if now is self else now

    @property
    def worker_service_client(self) -> Any:  # a private type of the SDK
        """The connection with which a worker polls."""
        return self._current.worker_service_client

    def update_rpc_metadata(self, metadata: Mapping[str, str | bytes]) -> None:
        """Updates the metadata of the connection."""
        self._current.update_rpc_metadata(metadata)

    def update_api_key(self, api_key: str | None) -> None:
        """Updates the key of the connection."""
        self._current.update_api_key(api_key)

    async def _rpc_call(
        self,
        rpc: str,
        req: Message,
        resp_type: type[T],
        *,
        service: str,
        retry: bool,
        metadata: Mapping[str, str | bytes],
        timeout: timedelta | None,  # noqa: ASYNC109 - the SDK's signature
    ) -> T:
        return await self._current._rpc_call(
            rpc, req, resp_type, service=service, retry=retry, metadata=metadata, timeout=timeout
        )
