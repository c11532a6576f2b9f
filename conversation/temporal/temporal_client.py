"""What do a client and a worker agree on? The task queue, the form of values, and how Temporal is reached."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.contrib.pydantic import PydanticPayloadConverter, ToJsonOptions
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultFailureConverterWithEncodedAttributes,
    ExternalStorage,
    StorageDriver,
)
from temporalio.envconfig import ClientConfig, ClientConnectConfig

from ..errors import InvalidInput
from ..settings_error import SettingsError
from .encryption import Codec, Keys

TASK_QUEUE = "baton"

WORKFLOW_TASK_TIMEOUT = timedelta(seconds=4)
"""After this long a workflow task of a worker that has died is given to another; a run is replayed within it."""


def task_queue() -> str:
    """Where a client puts runs: on the task queue that BATON_TASK_QUEUE names."""
    return os.environ.get("BATON_TASK_QUEUE") or TASK_QUEUE


STATE_DIR = Path(".baton")
"""The folder of what is kept on this machine, unless BATON_HOME names another."""


_JSON = PydanticPayloadConverter(ToJsonOptions(exclude_unset=True)).converters.values()


class _Payloads(CompositePayloadConverter):
    """JSON by pydantic, without what is at its default: that is most of a message."""

    def __init__(self) -> None:
        super().__init__(*_JSON)  # the SDK makes a converter for every task: what is costly in it is shared

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[object]:
        """Reads values; one that can't be read ends the run that it was meant for, and is not repeated in the error."""
        try:
            return super().from_payloads(payloads, type_hints)
        except (ValueError, KeyError, RuntimeError) as error:
            raise InvalidInput(f"a value can't be read as JSON of the wanted form: {type(error).__name__}") from None


DATA_CONVERTER = DataConverter(payload_converter_class=_Payloads)


def data_converter(environment: Mapping[str, str]) -> DataConverter:
    """How values travel: where the environment holds keys, they and the texts of errors are encrypted.

    Without its key nobody takes an encrypted value for one that makes no sense: the run waits for who has the key.
    Raises SettingsError.
    """
    keys = Keys.from_environment(environment)
    plain = dataclasses.replace(DATA_CONVERTER, payload_codec=Codec(keys))
    if not keys.ids:
        return plain
    return dataclasses.replace(plain, failure_converter_class=DefaultFailureConverterWithEncodedAttributes)


EXTERNAL_STORAGE_THRESHOLD = 1_000_000
"""Bytes from which on a value is kept elsewhere, and a history holds a reference: half of what Temporal takes.

All that a run says to clients is shorter, but for the status of a query with thousands of targets: any client reads it.
"""


EXTERNAL_STORAGE_URL = "BATON_EXTERNAL_STORAGE_URL"
"""The setting that names an S3 bucket for long values; without it they are kept in the journal."""


def with_external_storage(client: Client, *drivers: StorageDriver) -> Client:
    """The same client, which keeps long values with the first driver, and finds what others have kept with any."""
    storage = ExternalStorage(drivers, driver_selector=lambda *_: drivers[0], payload_size_threshold=EXTERNAL_STORAGE_THRESHOLD)
    config = client.config()
    config["data_converter"] = dataclasses.replace(client.data_converter, external_storage=storage)
    return Client(**config)


class ConnectionFailed(RuntimeError):
    """Temporal can't be reached, or wants nothing to do with us."""


_REASONS = {
    "Unauthenticated": "it refused the API key or the certificate",
    "PermissionDenied": "it refused the API key or the certificate",
    "InvalidContentType": "it doesn't speak TLS, which is used with an API key or with settings of TLS",
    "UnknownIssuer": "its certificate's authority isn't known here: name it with server_ca_cert_path",
    "NotValidForName": "its certificate is for another name: give that as server_name",
    "hyper::Error": "it broke off: it may want TLS, or a client certificate that it knows",
}
"""What the SDK's texts mean, by a word in them."""


def connect_config() -> ClientConnectConfig:
    """What the environment and ``temporal.toml`` say of Temporal; raises SettingsError, without the lines of the file.

    Those are TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, TEMPORAL_API_KEY, TEMPORAL_TLS… and TEMPORAL_PROFILE of the file, as
    the ``temporal`` command reads them.
    """
    try:
        return ClientConfig.load_client_connect_config()
    except (RuntimeError, OSError) as error:
        reason = str(error).partition("\n")[0]  # the others may hold a key
        raise SettingsError(f"the settings of Temporal can't be used: {reason}") from None


async def connect(address: str | None = None, environment: Mapping[str, str] = os.environ) -> Client:
    """Connects to the server at ``address`` on this machine, or where the settings say; the environment holds keys.

    Raises ConnectionFailed if it can't be reached, and SettingsError.
    """
    config = ClientConnectConfig(target_host=address) if address else connect_config()
    config.setdefault("target_host", "localhost:7233")
    try:
        return await Client.connect(**config, data_converter=data_converter(environment))
    except (RuntimeError, ValueError) as error:
        reason = next((reason for word, reason in _REASONS.items() if word in str(error)), str(error))
        raise ConnectionFailed(f"Temporal can't be reached at {config['target_host']}: {reason}") from None
