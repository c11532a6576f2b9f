"""Renders the requests and answers of models as JSON, as recordings hold and compare them."""

import hashlib
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from ...contracts.message import Message
from ...resources.base import JsonObject
from ...temporal.activity import workflow_id
from ..context.metering import ChainedModel
from ..context.outside import OutsideCall, canonical_request
from ..context.value_resolver import ValueResolver
from ..tool.tool import ToolDefinition
from .connection import properties_of
from .provider import ModelRequest


def model_call(caller: str, model: ChainedModel, values: ValueResolver, request: ModelRequest) -> OutsideCall:
    """The call of a model by the manifest with the id ``caller``."""
    manifest = model.manifest
    # Not the name from OPENAI_MODEL: a recording does not depend on the environment of a worker.
    name = (values.resolve(manifest.spec.model, manifest) if manifest else None) or model.name
    connection = manifest.spec.connection if manifest else None
    rendered: JsonObject = {
        "model": name,
        "settings": {
            **(dict(properties_of(connection, values, manifest)) if manifest and connection else {}),
            **model.settings.chosen,
        },
        "messages": rendered_messages(request.messages, request.contents),
        "tools": rendered_tools(request.tools),
        "mustUse": request.must_use or None,
        "schema": request.schema,
    }
    return OutsideCall(
        kind="model",
        caller=caller,
        purpose=request.label,
        run=workflow_id(),
        request=canonical_request(rendered, values.secrets.redact),
    )


def rendered_messages(messages: Sequence[Message], contents: Mapping[str, bytes]) -> list[JsonValue]:
    """Messages as a model reads them. Ids of calls are left out: the order says which result is whose."""
    return [_message(message, contents) for message in messages]


def _message(message: Message, contents: Mapping[str, bytes]) -> JsonObject:
    rendered: JsonObject = {"role": message.role}
    if message.name:
        rendered["name"] = message.name
    if message.content:
        rendered["content"] = message.content
    if message.tool_calls:
        rendered["calls"] = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    if message.attachments:
        rendered["attachments"] = [
            attachment.url or hashlib.sha256(contents.get(attachment.stored or "", b"")).hexdigest()
            for attachment in message.attachments
        ]
    return rendered


def rendered_tools(tools: Sequence[ToolDefinition]) -> list[JsonValue]:
    """The definitions of tools."""
    return [{"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in tools]


def answer_json(answer: Message) -> JsonObject:
    """A model's answer as JSON, from which it can be made again."""
    rendered: JsonObject = answer.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return rendered
