"""What do a client and a worker agree on? The task queue, the form of values, and how Temporal is reached."""

from datetime import timedelta
from pathlib import Path

from temporalio.client import Client
from temporalio.contrib.pydantic import PydanticPayloadConverter, ToJsonOptions
from temporalio.converter import DataConverter
from temporalio.envconfig import ClientConfig

TASK_QUEUE = "baton"

TASK_TIMEOUT = timedelta(seconds=3)
"""After this long a workflow task of a worker that has died is given to another."""

HOME = Path(".baton")
"""The folder of what is kept on this machine, unless BATON_HOME names another."""


class _Payloads(PydanticPayloadConverter):
    """JSON by pydantic, without what is at its default: that is most of a message."""

    def __init__(self) -> None:
        super().__init__(ToJsonOptions(exclude_unset=True))


DATA_CONVERTER = DataConverter(payload_converter_class=_Payloads)


async def connect(address: str | None = None) -> Client:
    """Connects to the Temporal server at ``address``, or where the environment and configuration file say.

    Those are TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, TEMPORAL_API_KEY, TEMPORAL_TLS… and TEMPORAL_PROFILE of
    ``temporal.toml``, as the ``temporal`` command reads them. Raises RuntimeError if it can't be reached.
    """
    config = ClientConfig.load_client_connect_config()
    if address:
        config["target_host"] = address
    config.setdefault("target_host", "localhost:7233")
    return await Client.connect(**config, data_converter=DATA_CONVERTER)
