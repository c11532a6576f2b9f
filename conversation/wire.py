"""What do a client and a worker agree on? The task queue, the form of values, and how Temporal is reached."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.contrib.pydantic import PydanticPayloadConverter, ToJsonOptions
from temporalio.converter import DataConverter
from temporalio.envconfig import ClientConfig

from conversation.errors import InvalidInput

TASK_QUEUE = "baton"

TASK_TIMEOUT = timedelta(seconds=10)
"""After this long a workflow task of a worker that has died is given to another; a long run is replayed within it."""

HOME = Path(".baton")
"""The folder of what is kept on this machine, unless BATON_HOME names another."""


class _Payloads(PydanticPayloadConverter):
    """JSON by pydantic, without what is at its default: that is most of a message."""

    def __init__(self) -> None:
        super().__init__(ToJsonOptions(exclude_unset=True))

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[object]:
        """Reads values; one that can't be read ends the run that it was meant for, and is not repeated in the error."""
        try:
            return super().from_payloads(payloads, type_hints)
        except (ValueError, KeyError, RuntimeError) as error:
            raise InvalidInput(f"a value can't be read as JSON of the wanted form: {type(error).__name__}") from None


DATA_CONVERTER = DataConverter(payload_converter_class=_Payloads)


async def connect(address: str | None = None) -> Client:
    """Connects to the server at ``address`` on this machine, or where the environment and configuration file say.

    Those are TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, TEMPORAL_API_KEY, TEMPORAL_TLS… and TEMPORAL_PROFILE of
    ``temporal.toml``, as the ``temporal`` command reads them. Raises RuntimeError if it can't be reached.
    """
    if address:
        return await Client.connect(address, data_converter=DATA_CONVERTER)
    config = ClientConfig.load_client_connect_config()
    config.setdefault("target_host", "localhost:7233")
    return await Client.connect(**config, data_converter=DATA_CONVERTER)
