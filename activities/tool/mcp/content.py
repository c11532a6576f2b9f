"""The result of an MCP tool as text: what is no text is named, with its type and size."""

import json
from collections.abc import Callable

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from pydantic import JsonValue

from ....conversation.text import parse_json, repair_surrogates
from ..http_client import MAX_BYTES


def result_text(result: CallToolResult, redact: Callable[[str], str] = str) -> str:
    """The result's parts, each on a line of its own; ``structuredContent`` too, unless a part says the same.

    A text that is too long for a model is cut; ``redact`` removes the beginning of a secret at its end.
    """
    parts = [_part(block) for block in result.content]
    structured: JsonValue = result.structured_content
    if structured is not None and not any(_says(part, structured) for part in parts):
        parts.append(json.dumps(structured, ensure_ascii=False))
    text = repair_surrogates("\n".join(parts)) or "(the tool answered without any content)"
    if len(text) > MAX_BYTES:
        text = f"{redact(text[:MAX_BYTES])}… [cut here: the answer has {len(text):,} characters]"
    return f"Error: {text.removeprefix('Error: ')}" if result.is_error else text


def _part(block: ContentBlock) -> str:
    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            return f"[{block.type}: {block.mime_type}, {_size(block.data)}]"
        case ResourceLink():
            described = ", ".join(each for each in (block.uri, block.mime_type, block.description) if each)
            return f"[resource {block.name}: {described}]"
        case EmbeddedResource(resource=TextResourceContents(uri=uri, text=text)):
            return f"[resource {uri}]\n{text}"
        case EmbeddedResource(resource=BlobResourceContents(uri=uri, blob=data, mime_type=kind)):
            return f"[resource {uri}: {kind or 'binary'}, {_size(data)}]"
    raise AssertionError("unreachable: there are no other blocks")


def _size(base64: str) -> str:
    return f"{len(base64.rstrip('=')) * 3 // 4:,} bytes"


def _says(part: str, structured: JsonValue) -> bool:
    """Whether a part is the same value: as JSON, or as the text that the SDK for Python wraps as ``{"result": …}``."""
    try:
        value = parse_json(part)
    except ValueError:
        value = part
    return structured in (value, {"result": part}, {"result": value})
