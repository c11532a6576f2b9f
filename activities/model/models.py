"""How is a model asked? Where it is and by which key, then in the words of its provider."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from openai import NotFoundError

from ...conversation.errors import ModelRejected
from ...conversation.messages.message import Message
from ...resources.base import JsonObject
from ...resources.model import Model
from ..context.value_resolver import Values
from ..process.secrets import Vault
from ..tool.tool import Tool
from .endpoint import Endpoint, endpoint_of, environment_endpoint
from .errors import meaning
from .openai import OpenAI


class Models:
    """The models that a worker can reach."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._openai = OpenAI()

    def endpoint(self, model: Model | None, name: str, values: Values) -> Endpoint:
        """Where a Model is asked; None stands for the environment's server, ``name`` for the model there."""
        return endpoint_of(model, values) if model else environment_endpoint(name, self._vault)

    async def ask(
        self,
        endpoint: Endpoint,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        hear: Callable[[str], None],
        *,
        must_use: bool = False,
        schema: JsonObject | None = None,
    ) -> Message:
        """One answer of a model; ``hear`` is told its text as it comes. Raises what ``errors`` makes of a failure.

        ``must_use``: it is to call for one of the tools. ``schema``: its final answer is to be JSON that fits, which a
        server that knows no schemas, or not this one, is not told.
        """
        if schema is not None:
            with suppress(ModelRejected):
                return await self._openai.ask(endpoint, messages, tools, hear, schema=schema)
        return await self._openai.ask(endpoint, messages, tools, hear, must_use=must_use)

    async def greet(self, endpoint: Endpoint) -> None:
        """Finds out, without a call that costs, whether a model's server answers; raises what a call would."""
        try:
            await self._openai.client(endpoint).models.list()
        except NotFoundError:  # there is no list, but a server
            return
        except Exception as error:
            raise meaning(error, endpoint) from None

    async def close(self) -> None:
        """Closes the connections."""
        await self._openai.close()
