"""The attributes of a model call's span: OpenTelemetry's semantic conventions for generative AI."""

import json
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from ...contracts.message import Message
from ...resources.base import JsonObject
from ...resources.model_settings import ModelSettings, without_settings
from ..context.metering import ChainedModel
from ..context.value_resolver import ValueResolver
from .connection import environment_model
from .provider import ModelRequest

PROVIDER_NAMES = {
    "openai": "openai",
    "openai-responses": "openai",
    "azure": "azure.ai.openai",
    "gemini": "gcp.gemini",
    "anthropic": "anthropic",
    "bedrock": "aws.bedrock",
}
"""``gen_ai.provider.name`` by the type of a Model."""

_PARAMETERS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "topP": "top_p",
    "top_k": "top_k",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "maxTokens": "max_tokens",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "seed": "seed",
    "stop": "stop_sequences",
    "stopSequences": "stop_sequences",
}


def model_name(model: ChainedModel, values: ValueResolver) -> str:
    """The name of a model in requests to its server."""
    if manifest := model.manifest:
        return values.resolve(manifest.spec.model, manifest) or model.name
    return environment_model(model.name, values.secrets)


def request_attributes(model: ChainedModel, name: str) -> JsonObject:
    """The attributes of a call before it is sent."""
    provider = PROVIDER_NAMES[model.manifest.spec.server if model.manifest else "openai"]
    return {"gen_ai.provider.name": provider, "gen_ai.request.model": name, "gen_ai.request.stream": model.streams}


def parameter_attributes(properties: Mapping[str, JsonValue], settings: ModelSettings) -> JsonObject:
    """The parameters of a request that are in the conventions: properties of the Model, and settings."""
    values = {**without_settings(properties.items(), settings), **settings.chosen}
    known = {name: value for name, value in values.items() if isinstance(value, int | float | list)}
    return {f"gen_ai.request.{_PARAMETERS[name]}": value for name, value in known.items() if name in _PARAMETERS}


def answer_attributes(answer: Message) -> JsonObject:
    """The attributes of a call from its answer."""
    usage = answer.usage
    attributes = JsonObject()
    if answer.model:
        attributes["gen_ai.response.model"] = answer.model
    if usage:
        attributes["gen_ai.usage.input_tokens"] = usage.prompt_tokens
        attributes["gen_ai.usage.output_tokens"] = usage.completion_tokens
        if usage.cached_tokens:
            attributes["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
    return attributes


def request_content(request: ModelRequest) -> JsonObject:
    """The content of a model request, as JSON texts."""
    system = [_text(message.content) for message in request.messages if message.role == "system"]
    messages = [_message(message) for message in request.messages if message.role != "system"]
    attributes: JsonObject = {"gen_ai.input.messages": _json(messages)}
    if system:
        attributes["gen_ai.system_instructions"] = _json(system)
    if request.tools:
        attributes["gen_ai.tool.definitions"] = _json(
            [
                {"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.parameters}
                for tool in request.tools
            ]
        )
    return attributes


def answer_content(answer: Message, reason: str) -> JsonObject:
    """The content of a model's answer, as a JSON text."""
    return {"gen_ai.output.messages": _json([{**_message(answer), "finish_reason": reason}])}


def _message(message: Message) -> JsonObject:
    if message.role == "tool":
        part: JsonObject = {"type": "tool_call_response", "id": message.tool_call_id, "response": message.content}
        return {"role": "tool", "parts": [part]}
    parts: list[JsonValue] = [_text(message.content)] if message.content else []
    parts += [
        {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments}
        for call in message.tool_calls
    ]
    optional_name: JsonObject = {"name": message.name} if message.name else {}
    return {"role": message.role, **optional_name, "parts": parts}


def _text(content: str) -> JsonObject:
    return {"type": "text", "content": content}


def _json(value: Sequence[object]) -> str:
    return json.dumps(value, ensure_ascii=False)
