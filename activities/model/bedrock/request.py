"""Writes a request in the form of Bedrock's Converse API."""

import json
from collections.abc import Collection
from typing import Any

from pydantic.alias_generators import to_camel

from ....resources.base import JsonObject
from ..alternation import Block, CallBlock, ResultBlock, alternating, system_prompt
from ..provider import ModelRequest
from ..schemas import has_open_objects
from .endpoint import BedrockEndpoint

Fields = dict[str, Any]

INFERENCE = frozenset({"maxTokens", "temperature", "topP", "stopSequences"})
"""Properties that Converse has for all models. A property may also be written in snake_case."""


def converse_fields(endpoint: BedrockEndpoint, request: ModelRequest, known: Collection[str]) -> Fields:
    """The arguments of ``converse`` and ``converse_stream``; ``known`` are those that the installed library knows."""
    messages = [{"role": role, "content": [*map(_block, blocks)]} for role, blocks in alternating(request)]
    fields: Fields = {"inferenceConfig": {}, "additionalModelRequestFields": {}}
    for name, value in endpoint.properties:
        if (camel := to_camel(name)) in INFERENCE:
            fields["inferenceConfig"][camel] = value
        elif name in known:
            fields[name] = value
        else:
            fields["additionalModelRequestFields"][name] = value
    own = {"maxTokens": endpoint.max_tokens, "temperature": endpoint.temperature}
    fields["inferenceConfig"] |= {name: value for name, value in own.items() if value is not None}
    if request.schema is not None and "outputConfig" in known and not has_open_objects(request.schema):
        fields["outputConfig"] = {**fields.get("outputConfig", {}), "textFormat": _text_format(request.schema)}
    system = system_prompt(request.messages)
    given = {"system": [{"text": system}] if system else None, "toolConfig": _tools(request)}
    fields |= {"modelId": endpoint.model, "messages": messages, **given}
    return {name: value for name, value in fields.items() if value}


def _text_format(schema: JsonObject) -> Fields:
    return {"type": "json_schema", "structure": {"jsonSchema": {"schema": json.dumps(schema), "name": "answer"}}}


def _tools(request: ModelRequest) -> Fields:
    if not request.tools:
        return {}
    tools = [
        {
            "toolSpec": {
                "name": tool.name,
                "description": tool.description or tool.name,
                "inputSchema": {"json": tool.parameters},
            }
        }
        for tool in request.tools
    ]
    if not request.must_use:
        return {"tools": tools}
    named = {"tool": {"name": request.tools[0].name}}
    return {"tools": tools, "toolChoice": {"any": {}} if len(tools) > 1 else named}


def _block(block: Block) -> Fields:
    match block:
        case CallBlock(id_, name, arguments):
            return {"toolUse": {"toolUseId": id_, "name": name, "input": arguments}}
        case ResultBlock(id_, text):
            return {"toolResult": {"toolUseId": id_, "content": [{"text": text}]}}
        case text:
            return {"text": text}
