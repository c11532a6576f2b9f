"""What clients and workers share: the task queue, external storage, and the connection to Temporal."""

import asyncio
import contextlib
import dataclasses
import functools
import os
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

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
from temporalio.converter import (
    DataConverter,
    ExternalStorage,
    StorageDriver,
    StorageDriverActivityInfo,
    StorageDriverSelectContext,
    StorageDriverWorkflowInfo,
)
from temporalio.envconfig import ClientConfig, ClientConnectConfig
from temporalio.runtime import Runtime, TelemetryConfig

from ..contracts.settings import CONVERTER, REDACT, TASK_QUEUE, SettingsError
from ..resources.strategies import OWN_WORKFLOWS
from .encryption import EncryptionCodec, Keys
from .external_storage import CheckedStorage

if TYPE_CHECKING:
    from ..contracts.trace import TraceContext

# Functions import what loads types of Baton: that takes a third of the time of a command such as ``baton list``.


HEARTBEAT_INTERVAL = timedelta(seconds=2)
"""The interval of worker heartbeats where Baton sets the SDK's runtime; a program with its own may choose another."""


@functools.cache
def set_program_runtime() -> None:
    """Sets the SDK's default runtime of a program, with frequent worker heartbeats, unless the program has set one.

    From the heartbeats, others notice soon that the program has ended.
    """
    with contextlib.suppress(RuntimeError):
        Runtime.set_default(Runtime(telemetry=TelemetryConfig(), worker_heartbeat_interval=HEARTBEAT_INTERVAL))


class PropagateTrace(Interceptor):
    """Propagates the program's current trace context to the runs that it starts.

    Without a current OpenTelemetry span, that is the context in the environment (TRACEPARENT, TRACESTATE).
    """

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - as the SDK calls it
        """The calls of a client, with the header."""
        return _Starts(next)


class _Starts(OutboundInterceptor):
    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:  # noqa: A002 - as the SDK
        from ..contracts.trace import HEADER  # noqa: PLC0415

        if HEADER not in input.headers and (place := current_place()):
            input.headers = {**input.headers, HEADER: place.header()}
        return await super().start_workflow(input)


def current_place() -> "TraceContext | None":
    """The program's current trace context, if any. A program that has not imported OpenTelemetry has no span."""
    from ..contracts.trace import TraceContext  # noqa: PLC0415

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
"""The timeout of a workflow task, after which another worker gets the task of a crashed worker.

A replay must fit into it.
"""


PROGRAM = "/program-"
"""Marks the task queue of a program that executes runs with its own functions: it follows the workers' task queue."""


def task_queue() -> str:
    """The task queue for new runs: BATON_TASK_QUEUE, or the default."""
    return os.environ.get("BATON_TASK_QUEUE") or TASK_QUEUE


EXTERNAL_STORAGE_THRESHOLD = 1_000_000
"""Larger payloads (in bytes) go to external storage, and the history contains a reference. Temporal's limit is 2 MB.

Results and statuses for clients are smaller, except the status of a query with thousands of targets, so any Temporal
client can read them.
"""


EXTERNAL_STORAGE_URL = "BATON_EXTERNAL_STORAGE_URL"
"""The setting that names an S3 bucket for large values; without it they are stored in the journal."""


def with_external_storage(client: Client, *drivers: StorageDriver) -> Client:
    """The same client with external storage: it stores with the first driver, and reads with all of them.

    An application's client that has external storage continues to store its values there.
    """
    config = client.config(active_config=True)
    config["data_converter"] = converter_with_external_storage(client.data_converter, *drivers)
    config["plugins"] = []  # already applied: the active configuration is their result
    return Client(**config)


def converter_with_external_storage(converter: DataConverter, *drivers: StorageDriver) -> DataConverter:
    """The same data converter with external storage, as for ``with_external_storage``."""
    storage = converter.external_storage
    return dataclasses.replace(
        converter, external_storage=_extended(storage, drivers) if storage else _storage(drivers)
    )


def _storage(drivers: Sequence[StorageDriver]) -> ExternalStorage:
    def for_own_values(context: StorageDriverSelectContext, _: Payload) -> StorageDriver | None:
        return None if _is_foreign(context.target) else drivers[0]

    return CheckedStorage(drivers, driver_selector=for_own_values, payload_size_threshold=EXTERNAL_STORAGE_THRESHOLD)


def _is_foreign(target: StorageDriverWorkflowInfo | StorageDriverActivityInfo | None) -> bool:
    """Whether a value is of a workflow of an application: the journal does not know how long it is needed."""
    return target is not None and target.type is not None and target.type not in OWN_WORKFLOWS


def _extended(storage: ExternalStorage, drivers: Sequence[StorageDriver]) -> ExternalStorage:
    """The storage, which also reads what the drivers have stored. Drivers of the same names are replaced."""
    names = {driver.name() for driver in drivers}
    others = [driver for driver in storage.drivers if driver.name() not in names]
    if not others:
        return _storage(drivers)
    return CheckedStorage(
        [*others, *drivers],
        driver_selector=storage.driver_selector or (lambda *_: others[0]),
        payload_size_threshold=storage.payload_size_threshold,
    )


def for_baton(client: Client, environment: Mapping[str, str] = os.environ) -> Client:
    """An application's client that also converts Baton's values, and retries early queries.

    It keeps the connection, the namespace, the interceptors and the conversion of all other values, with its codec. If
    ``environment`` has encryption keys, what the codec has encoded is encrypted. Raises SettingsError.
    """
    from .converter import data_converter_beside  # noqa: PLC0415

    config = client.config(active_config=True)
    config["data_converter"] = data_converter_beside(config["data_converter"], environment)
    config["interceptors"] = with_baton_interceptors(config["interceptors"], environment)
    config["plugins"] = []  # already applied: the active configuration is their result
    return Client(**config)


def with_baton_interceptors(
    interceptors: Sequence[Interceptor], environment: Mapping[str, str] = os.environ
) -> list[Interceptor]:
    """The interceptors of a client, and those of Baton that it does not have yet."""
    own: list[Interceptor] = [RetryQueries(), PropagateTrace()]
    if environment.get(REDACT):
        from .personal_data import RedactInputs, personal_data_of  # noqa: PLC0415

        if personal_data := personal_data_of(environment):
            own.append(RedactInputs(personal_data))
    kinds = {type(interceptor) for interceptor in interceptors}
    return [*interceptors, *(interceptor for interceptor in own if type(interceptor) not in kinds)]


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
    address: str | None = None,
    environment: Mapping[str, str] = os.environ,
    identity: str | None = None,
    *,
    is_local: bool = True,
    typed: bool = True,
) -> Client:
    """Connects to the server at ``address``, or to the configured one.

    A server that ``is_local`` was started on this machine by Baton. For any other, the environment and Temporal's
    profiles have the namespace, the API key and TLS settings. ``environment`` has the encryption keys, and may name an
    application's data converter. Temporal stores the client's ``identity`` in histories; the default is that of its
    process. A client that is not ``typed`` reads JSON alone, and no types of Baton. Raises ConnectionFailed and
    SettingsError.
    """
    config = ClientConnectConfig() if address and is_local else connect_config()
    if address:
        config["target_host"] = address
    config.setdefault("target_host", "localhost:7233")
    try:
        converter = _data_converter(environment, typed=typed)
        interceptors = with_baton_interceptors((), environment)
        return await Client.connect(**config, data_converter=converter, identity=identity, interceptors=interceptors)
    except (RuntimeError, ValueError) as error:
        cause = re.search(r'(?:message|error): "([^"]+)"', str(error))  # the system's, in the SDK's chain of errors
        message = cause[1].lower() if cause else str(error)
        reason = next((reason for word, reason in _REASONS.items() if word in str(error)), message)
        raise ConnectionFailed(f"Temporal can't be reached at {config['target_host']}: {reason}") from None


def _data_converter(environment: Mapping[str, str], *, typed: bool) -> DataConverter:
    if not (typed or environment.get(CONVERTER)):
        return DataConverter(payload_codec=EncryptionCodec(Keys.from_environment(environment)))
    from .converter import data_converter  # noqa: PLC0415

    return data_converter(environment)
