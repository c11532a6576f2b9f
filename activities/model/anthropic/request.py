"""Writes a request in the form of Anthropic's Messages API."""

from typing import Any

from anthropic import transform_schema

from ....resources.base import JsonObject
from ..alternation import Block, CallBlock, ResultBlock, alternating, system_prompt
from ..provider import ModelRequest
from ..schemas import has_open_objects
from .endpoint import AnthropicEndpoint

MAX_TOKENS = 8_192
"""The limit of an answer where the Model's property ``max_tokens`` says nothing: the API wants one."""

Body = dict[str, Any]


def request_body(endpoint: AnthropicEndpoint, request: ModelRequest, *, stream: bool) -> Body:
    """The body of a request. The Model's properties count more than what follows from the request, except for text."""
    messages = [{"role": role, "content": [*map(_block, blocks)]} for role, blocks in alternating(request)]
    properties: Body = dict(endpoint.properties)
    body: Body = {
        **{"model": endpoint.model, "max_tokens": MAX_TOKENS},
        **_tools(request),
        **properties,
        **{"messages": messages, "stream": stream},
    }
    if system := system_prompt(request.messages):
        body["system"] = system
    if request.schema is not None and (schema := enforced_schema(request.schema)):
        given = properties.get("output_config")
        format_ = {"type": "json_schema", "schema": schema}
        body["output_config"] = {**(given if isinstance(given, dict) else {}), "format": format_}
    return body


def enforced_schema(schema: JsonObject) -> JsonObject | None:
    """The schema as the API can enforce it; None for one that it can't: it knows no objects with further properties."""
    if has_open_objects(schema):
        return None
    try:
        return transform_schema(schema)
    except (ValueError, RecursionError):
        return None


def _tools(request: ModelRequest) -> Body:
    if not request.tools:
        return {}
    tools = [
        {"name": tool.name, "description": tool.description, "input_schema": tool.parameters} for tool in request.tools
    ]
    if not request.must_use:
        return {"tools": tools}
    named = {"type": "tool", "name": request.tools[0].name}
    return {"tools": tools, "tool_choice": {"type": "any"} if len(tools) > 1 else named}


def _block(block: Block) -> Body:
    match block:
        case CallBlock(id_, name, arguments):
            return {"type": "tool_use", "id": id_, "name": name, "input": arguments}
        case ResultBlock(id_, text):
            return {"type": "tool_result", "tool_use_id": id_, "content": text}
        case text:
            return {"type": "text", "text": text}
