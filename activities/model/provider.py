"""The protocol of a model provider: what the activities need of the API by which a type of models is asked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...conversation.messages.message import Message
from ...resources.base import JsonObject
from ..context.model_chain import ChainedModel
from ..context.value_resolver import ValueResolver
from ..tool.tool import ToolDefinition


@dataclass(frozen=True)
class ModelRequest:
    """What a model is asked, in the words of no particular API.

    ``schema`` is the JSON Schema of its final answer, if it has to fit one; a provider passes it on as well as its
    server can. ``must_use``: the model has to call one of the tools. ``speaker`` is the name of its own earlier
    messages in the conversation; messages of the role assistant with other names are from others. ``label`` tells the
    calls of one activity apart.
    """

    messages: Sequence[Message]
    tools: Sequence[ToolDefinition] = ()
    schema: JsonObject | None = None
    must_use: bool = False
    speaker: str | None = None
    label: str = "call"


class Provider(Protocol):
    """Asks the models of one or more types (``spec.type`` of a Model). One instance serves all models of a worker.

    It resolves the model's address and key from the manifest at the time of use, and translates every failure into an
    error of ``conversation.errors``: which one decides whether Temporal tries again, and whether a fallback is asked.
    """

    async def ask(
        self, model: ChainedModel, values: ValueResolver, request: ModelRequest, on_text: Callable[[str], None]
    ) -> Message:
        """One answer of the model, within ``model.timeout``; ``on_text`` gets its text piece by piece.

        Raises ModelRejected where the server refuses the request, perhaps because of its schema.
        """
        ...

    async def check(self, model: ChainedModel, values: ValueResolver) -> str:
        """Checks without a paid request that the model's server answers, and returns its address; raises as ``ask``."""
        ...

    async def close(self) -> None:
        """Closes the connections."""
        ...
