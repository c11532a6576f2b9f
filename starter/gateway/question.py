"""What a target is asked, and the query that it becomes."""

import hashlib
import json
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import ValidationError
from pydantic.alias_generators import to_camel, to_snake

from ...contracts.message import Head
from ...resources.agent import Agent
from ...resources.base import API_VERSION, BY_SHAPE, LIST, SINGLE, JsonModel, JsonObject
from ...resources.client import ClientRequest, ClientSettings, ClientTool
from ...resources.manifest import Metadata
from ...resources.problems import explain_errors
from ...resources.query import Query, QuerySpec
from .access import Caller
from .errors import BadRequestError
from .owners import conversation_of
from .targets import ServedTarget

QuestionInput = Annotated[Annotated[str, SINGLE] | Annotated[list[JsonObject], LIST], BY_SHAPE]
"""The input of a request: a text, or a list of messages or items."""


class TargetQuestion(JsonModel):
    """What a target is asked; the fields are those of a Query's ``spec``, with ``type: messages`` for a list.

    ``after`` is the exact place in an earlier run's conversation that the question follows. ``session`` are initial
    values of the run's session. ``tools`` are executed by the client: see ``Run.give_result``. ``settings`` are those
    that it chooses for the agent, as in ``ClientSettings``; null stands for none.
    """

    input: QuestionInput
    parameters: dict[str, str] = {}
    conversation: str | None = None
    timeout: str | None = None
    budget: JsonObject | None = None
    session: JsonObject = {}
    after: Head | None = None
    tools: list[ClientTool] = []
    settings: JsonObject = {}

    @property
    def digest(self) -> str:
        """The SHA-256 of the question."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def query(self, target: ServedTarget, caller: Caller) -> Query:
        """The query that asks a target with the rights of a caller. Raises BadRequestError."""
        fields: dict[str, Any] = {
            "type": "user" if isinstance(self.input, str) else "messages",
            "input": self.input,
            "targets": [{"type": target.kind, "name": target.name}],
            "serviceAccount": {"name": caller.account.name, "namespace": caller.account.namespace},
            "parameters": [{"name": name, "value": value} for name, value in self.parameters.items()],
            "conversationId": conversation_of(caller, self.conversation) if self.conversation else None,
            "timeout": self.timeout,
            "budget": self.budget,
            "client": self._client,
        }
        given = {name: value for name, value in fields.items() if value not in (None, [])}
        try:
            spec = QuerySpec.model_validate(given)
        except ValidationError as error:
            path, reason = next(explain_errors(error, QuerySpec))
            place = _place_of_client(path[1:]) if path[:1] == ("client",) else ".".join(map(str, path))
            wrong = BadRequestError(f"{place}: {reason}", param=place)
            raise (wrong.named("conversation") if path[:1] == ("conversationId",) else wrong) from None
        if spec.client:
            self._check_client(spec.client, target)
        metadata = Metadata(name=target.name, namespace=target.namespace)
        return Query(api_version=API_VERSION, kind="Query", metadata=metadata, spec=spec)

    @property
    def _client(self) -> JsonObject | None:
        """What the caller brings, as a Query has it; None if that is nothing. Raises BadRequestError."""
        settings: JsonObject = {name: value for name, value in self.settings.items() if value is not None}
        known = {field.alias or name for name, field in ClientSettings.model_fields.items()}
        if unknown := next((name for name in settings if to_camel(name) not in known), None):
            raise BadRequestError(f"{unknown}: unknown setting", param=unknown)
        if not self.tools and not settings:
            return None
        return {"tools": [tool.model_dump(mode="json") for tool in self.tools], "settings": settings}

    def _check_client(self, client: ClientRequest, target: ServedTarget) -> None:
        """Raises BadRequestError for what the target does not allow, as the start of the run would."""
        agent = target.manifest
        if not isinstance(agent, Agent):
            names = [*(["tools"] if client.offered_tools else []), *map(to_snake, client.settings.chosen_of_agent)]
            if names:
                text = f"{names[0]}: {target.id} is a team: only agents take tools and settings"
                raise BadRequestError(text, param=names[0])
            return
        for path, reason in [*agent.refusals(client), *agent.colliding_tools(client)]:
            place = _place_of_client(path)
            raise BadRequestError(f"{place}: {reason}", param=place)


def _place_of_client(path: Sequence[str | int]) -> str:
    """The place in a question of what its caller brings, such as ``top_p`` or ``tools.0.name``."""
    parts = path[1:] if path[:1] == ("settings",) else path
    return ".".join(to_snake(str(part)) for part in parts)
