"""What clients and workers share: the task queue, the data converter, and the connection to Temporal."""

import asyncio
import dataclasses
import os
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.client import (
    Client,
    Interceptor,
    OutboundInterceptor,
    QueryWorkflowInput,
    StartWorkflowInput,
    WorkflowHandle,
    WorkflowQueryFailedError,
)
from temporalio.contrib.pydantic import PydanticPayloadConverter, ToJsonOptions
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultFailureConverterWithEncodedAttributes,
    StorageDriver,
)
from temporalio.envconfig import ClientConfig, ClientConnectConfig

from ..contracts.settings import TASK_QUEUE, SettingsError
from ..contracts.trace import HEADER, TraceContext
from .encryption import Codec, Keys
from .external_storage import CheckedConverter, CheckedStorage, check_not_missing


class PropagateTrace(Interceptor):
    """Propagates the program's current trace context to the runs that it starts.

    Without a current OpenTelemetry span, that is the context in the environment (TRACEPARENT, TRACESTATE).
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
    """The program's current trace context, if any. A program that has not imported OpenTelemetry has no span."""
    if trace := sys.modules.get("opentelemetry.trace"):
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            return TraceContext(
                trace=f"{span.trace_id:032x}",
                span=f"{span.span_id:016x}",
                sampled=bool(span.trace_flags & 1),
                state=span.trace_state.to_header(),
            )
    return TraceContext.in_carrier({name: os.environ.get(name.upper(), "") for name in ("traceparent", "tracestate")})


EARLY_QUERY = "the query arrived before the workflow task for the latest events: retry"
"""The message with which a worker rejects such a query."""

_QUERY_RETRIES = 50
_QUERY_INTERVAL = 0.2
"""Seconds between two attempts."""


class RetryQueries(Interceptor):
    """Retries early queries, up to 50 times, with 0.2 seconds between the attempts."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - as the SDK calls it
        """The calls of a client, with retried queries."""
        return _Queries(next)


class _Queries(OutboundInterceptor):
    async def query_workflow(self, input: QueryWorkflowInput) -> Any:  # noqa: A002 - as the SDK calls it
        for _ in range(_QUERY_RETRIES):
            try:
                return await super().query_workflow(input)
            except WorkflowQueryFailedError as error:
                if EARLY_QUERY not in str(error):
                    raise
            await asyncio.sleep(_QUERY_INTERVAL)
        return await super().query_workflow(input)


WORKFLOW_TASK_TIMEOUT = timedelta(seconds=4)
"""The timeout of a workflow task, after which another worker gets the task of a crashed one.

A replay must fit into it.
"""


PROGRAM = "/program-"
"""What follows the name of the workers' task queue in that of a program that executes runs with its own functions."""


def task_queue() -> str:
    """The task queue for new runs: BATON_TASK_QUEUE, or the default."""
    return os.environ.get("BATON_TASK_QUEUE") or TASK_QUEUE


_JSON = PydanticPayloadConverter(ToJsonOptions(exclude_unset=True)).converters.values()


class _Payloads(CompositePayloadConverter):
    """Converts values to JSON with pydantic, without unset fields, which are most fields of a message."""

    def __init__(self) -> None:
        super().__init__(*_JSON)  # the SDK creates a converter per task, so the expensive parts are shared

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[object]:
        """Converts payloads. An invalid value fails the run that receives it; the error doesn't contain the value.

        Raises JournalLost for a value that is missing in external storage.
        """
        check_not_missing(payloads)
        try:
            return super().from_payloads(payloads, type_hints)
        except (ValueError, KeyError, RuntimeError) as error:
            from ..contracts.errors import InvalidInput  # noqa: PLC0415  # many models, which commands needn't load

            raise InvalidInput(f"a payload is no valid JSON of the expected type: {type(error).__name__}") from None


DATA_CONVERTER: DataConverter = CheckedConverter(payload_converter_class=_Payloads)


def data_converter(environment: Mapping[str, str]) -> DataConverter:
    """The data converter; if the environment has encryption keys, it encrypts payloads and error messages.

    If the key of an encrypted value is missing, the task fails and is retried until a worker has the key; the run does
    not fail. Raises SettingsError.
    """
    keys = Keys.from_environment(environment)
    plain = dataclasses.replace(DATA_CONVERTER, payload_codec=Codec(keys))
    if not keys.ids:
        return plain
    return dataclasses.replace(plain, failure_converter_class=DefaultFailureConverterWithEncodedAttributes)


EXTERNAL_STORAGE_THRESHOLD = 1_000_000
"""Larger payloads (in bytes) go to external storage, and the history contains a reference. Temporal's limit is 2 MB.

Results and statuses for clients are smaller, except the status of a query with thousands of targets, so any Temporal
client can read them.
"""


EXTERNAL_STORAGE_URL = "BATON_EXTERNAL_STORAGE_URL"
"""The setting that names an S3 bucket for large values; without it they are stored in the journal."""


def with_external_storage(client: Client, *drivers: StorageDriver) -> Client:
    """The same client with external storage: it stores with the first driver, and reads with all of them."""
    storage = CheckedStorage(
        drivers, driver_selector=lambda *_: drivers[0], payload_size_threshold=EXTERNAL_STORAGE_THRESHOLD
    )
    config = client.config()
    config["data_converter"] = dataclasses.replace(client.data_converter, external_storage=storage)
    return Client(**config)


class ConnectionFailed(RuntimeError):
    """Temporal is unreachable, or rejects the connection."""


_REASONS = {
    "Unauthenticated": "it rejected the API key or the certificate",
    "PermissionDenied": "it rejected the API key or the certificate",
    "InvalidContentType": "it doesn't support TLS, which an API key and TLS settings enable",
    "UnknownIssuer": "its certificate is signed by an unknown authority: set server_ca_cert_path",
    "NotValidForName": "its certificate is for another host name: set server_name",
    "hyper::Error": "it closed the connection: it may require TLS, or a client certificate",
}
"""Explanations of the SDK's error messages, by a word in the message."""


def connect_config() -> ClientConnectConfig:
    """The connection settings from the environment and ``temporal.toml``, as the ``temporal`` CLI reads them.

    They are TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, TEMPORAL_API_KEY, TEMPORAL_TLS… and TEMPORAL_PROFILE. Raises
    SettingsError; its message doesn't repeat lines of the file.
    """
    try:
        return ClientConfig.load_client_connect_config(override_env_vars={**os.environ})
    except (RuntimeError, OSError) as error:
        reason = str(error).partition("\n")[0]  # the other lines may contain a key
        raise SettingsError(f"Temporal's connection settings are invalid: {reason}") from None


async def connect(
    address: str | None = None, environment: Mapping[str, str] = os.environ, identity: str | None = None
) -> Client:
    """Connects to the server at ``address`` on this machine, or to the configured one.

    ``environment`` has the encryption keys. Temporal stores the client's ``identity`` in histories; the default is that
    of its process. Raises ConnectionFailed and SettingsError.
    """
    config = ClientConnectConfig(target_host=address) if address else connect_config()
    config.setdefault("target_host", "localhost:7233")
    try:
        converter = data_converter(environment)
        interceptors = [RetryQueries(), PropagateTrace()]
        return await Client.connect(**config, data_converter=converter, identity=identity, interceptors=interceptors)
    except (RuntimeError, ValueError) as error:
        own = re.search(r'(?:message|error): "([^"]+)"', str(error))  # the system's, in the SDK's chain of errors
        other = own[1].lower() if own else str(error)
        reason = next((reason for word, reason in _REASONS.items() if word in str(error)), other)
        raise ConnectionFailed(f"Temporal can't be reached at {config['target_host']}: {reason}") from None
