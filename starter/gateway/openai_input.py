"""What clients of OpenAI's protocols send: requests, and their messages, images and files as those of a Query."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from ...resources.base import JsonObject
from .errors import BadRequestError
from .openai_calls import ToolResult, is_call
from .owners import MAX_CONVERSATION
from .question import QuestionInput

MAX_METADATA = 16
"""Entries of a request's metadata, as in OpenAI's own protocol."""

ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}
"""The roles of messages in a Query, by those in requests."""

DETAILS = {"low": "low", "high": "high", "auto": "auto", "original": "high"}


class Received(BaseModel):
    """A part of a request. Fields that are not read are ignored: clients send those of newer protocols."""

    model_config = ConfigDict(extra="allow", hide_input_in_errors=True)


class StreamOptions(Received):
    """How a completion is streamed."""

    include_usage: bool | None = None


Metadata = dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]]


def _no_object(value: object) -> object:
    """The id of a conversation, which may be in an object."""
    return value.get("id") if isinstance(value, dict) else value


class ChatRequest(Received):
    """``POST /v1/chat/completions``."""

    model: str
    messages: list[JsonObject] = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    tools: list[JsonObject] | None = None
    tool_choice: JsonValue = None
    parallel_tool_calls: bool | None = None
    response_format: JsonObject | None = None


class ResponseRequest(Received):
    """``POST /v1/responses``."""

    model: str
    input: QuestionInput
    instructions: str | None = None
    stream: bool | None = None
    background: bool | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    conversation: Annotated[str | None, BeforeValidator(_no_object)] = Field(None, max_length=MAX_CONVERSATION)
    metadata: Annotated[Metadata, Field(max_length=MAX_METADATA)] | None = None
    tools: list[JsonObject] | None = None
    tool_choice: JsonValue = None
    parallel_tool_calls: bool | None = None
    reasoning: JsonObject | None = None
    text: JsonObject | None = None


def chat_results(messages: Sequence[JsonObject]) -> list[ToolResult]:
    """The results of calls, if a chat ends with one: what its request is about. Raises BadRequestError."""
    calls = [message.get("tool_call_id") if message.get("role") == "tool" else None for message in messages]
    return _results(calls, [message.get("content") for message in messages], "messages", "content")


def input_results(items: str | Sequence[JsonObject]) -> list[ToolResult]:
    """The results of calls, if the input of a response ends with one. Raises BadRequestError."""
    if isinstance(items, str):
        return []
    calls = [item.get("call_id") if item.get("type") == "function_call_output" else None for item in items]
    return _results(calls, [item.get("output") for item in items], "input", "output")


def _results(calls: Sequence[JsonValue], contents: Sequence[JsonValue], param: str, name: str) -> list[ToolResult]:
    """The results among items of which ``calls`` has the calls: None for what is no result."""
    ours = [call if is_call(call) else None for call in calls]
    if not ours or ours[-1] is None:
        return []
    first = max((index + 1 for index, call in enumerate(ours) if call is None), default=0)
    return [
        ToolResult(str(call), _joined(_content(contents[index], f"{param}.{index}.{name}")), index >= first)
        for index, call in enumerate(ours)
        if call is not None
    ]


def chat_messages(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """The messages of a chat as those of a Query. Raises BadRequestError."""
    converted: list[JsonObject] = []
    for index, message in enumerate(messages):
        place = f"messages.{index}"
        role = message.get("role")
        if role in ("tool", "function"):
            converted.append(_tool_result(message.get("content"), f"{place}.content"))
            continue
        text = _content(message.get("content"), f"{place}.content")
        called = _called(message.get("tool_calls"))
        if called and isinstance(text, str):
            text = "\n".join(filter(None, [text, called]))
        converted += _message(role, text, message.get("name"), place)
    return converted


def input_messages(items: str | Sequence[JsonObject]) -> list[JsonObject]:
    """The input of a response as messages of a Query. Raises BadRequestError."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    converted: list[JsonObject] = []
    for index, item in enumerate(items):
        place = f"input.{index}"
        match item.get("type", "message"):
            case "message":
                text = _content(item.get("content"), f"{place}.content")
                converted += _message(item.get("role"), text, item.get("name"), place)
            case "function_call":
                converted += _message("assistant", _call_text(item.get("name"), item.get("arguments")), None, place)
            case "function_call_output":
                converted.append(_tool_result(item.get("output"), f"{place}.output"))
            case "reasoning":  # what a client sends back of an earlier output
                continue
            case other:
                raise BadRequestError(f"{place}.type: '{str(other)[:100]}' is not supported", param=f"{place}.type")
    return converted


def stored_items(items: str | Sequence[JsonValue]) -> list[JsonObject]:
    """The messages of a Query as input items of a response."""
    messages: Iterable[Any] = [{"role": "user", "content": items}] if isinstance(items, str) else items
    return [
        {
            "id": f"msg_input_{index}",
            "type": "message",
            "role": message["role"],
            "status": "completed",
            "content": _stored_content(message["role"], message["content"]),
        }
        for index, message in enumerate(messages)
    ]


def _message(role: object, content: str | list[JsonObject], name: object, place: str) -> list[JsonObject]:
    if not isinstance(role, str) or role not in ROLES:
        raise BadRequestError(f"{place}.role: '{str(role)[:100]}' is not supported", param=f"{place}.role")
    if role == "assistant" and isinstance(content, list):
        content = "\n".join(str(part.get("text", "")) for part in content)
    if role == "assistant" and not content:
        return []
    message: JsonObject = {"role": ROLES[role], "content": content}  # type: ignore[dict-item]  # JSON, as mypy can't see
    if isinstance(name, str) and name:
        message["name"] = name
    return [message]


def _content(content: JsonValue, place: str) -> str | list[JsonObject]:
    """The content of a message: a text, or parts with texts, images and files."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRequestError(f"{place}: must be a string or a list of parts", param=place)
    parts = [_part(part, f"{place}.{index}") for index, part in enumerate(content)]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(str(part["text"]) for part in parts)
    return parts


def _part(part: JsonValue, place: str) -> JsonObject:
    """A part of a message, of either protocol, in the form of a Query."""
    if not isinstance(part, dict):
        raise BadRequestError(f"{place}: it has to be an object with a type", param=place)
    match part.get("type"):
        case "text" | "input_text" | "output_text":
            return {"type": "text", "text": _text(part.get("text"), f"{place}.text")}
        case "refusal":
            return {"type": "text", "text": _text(part.get("refusal"), f"{place}.refusal")}
        case "image_url":
            image = part.get("image_url")
            return _image(image if isinstance(image, dict) else {"url": image}, place)
        case "input_image":
            return _image({"url": part.get("image_url"), "detail": part.get("detail")}, place)
        case "file":
            file = part.get("file")
            return _file(file if isinstance(file, dict) else {}, place)
        case "input_file":
            return _file(part, place)
        case other:
            raise BadRequestError(f"{place}.type: '{str(other)[:100]}' is not supported", param=f"{place}.type")


def _image(image: JsonObject, place: str) -> JsonObject:
    url = image.get("url")
    if not isinstance(url, str):
        raise BadRequestError(f"{place}.image_url: a URL is needed: an https://, http:// or data: URL", param=place)
    converted: JsonObject = {"url": url}
    detail = image.get("detail")
    if isinstance(detail, str) and detail in DETAILS:
        converted["detail"] = DETAILS[detail]
    return {"type": "image_url", "image_url": converted}


def _file(file: JsonObject, place: str) -> JsonObject:
    converted = {name: file[name] for name in ("file_data", "file_url", "filename") if file.get(name) is not None}
    if not {"file_data", "file_url"} & {*converted}:
        raise BadRequestError(f"{place}: file_data or file_url is needed: files are not stored here", param=place)
    return {"type": "file", "file": converted}


def _text(text: JsonValue, place: str) -> str:
    if not isinstance(text, str):
        raise BadRequestError(f"{place}: must be a string", param=place)
    return text


def _tool_result(output: JsonValue, place: str) -> JsonObject:
    """The result of a tool in an earlier turn, which nothing waits for: a text to read."""
    return {"role": "user", "content": f"(result of a tool) {_joined(_content(output, place))}"}


def _joined(content: str | list[JsonObject]) -> str:
    return content if isinstance(content, str) else "\n".join(str(part.get("text", "")) for part in content)


def _called(calls: JsonValue) -> str:
    """The tool calls of an earlier answer as a text."""
    texts = []
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            texts.append(_call_text(function.get("name"), function.get("arguments")))
    return "\n".join(texts)


def _call_text(name: JsonValue, arguments: JsonValue) -> str:
    return f"(called {name} with {arguments})"


def _stored_content(role: str, content: Any) -> list[JsonValue]:
    """The content of a Query's message as that of an input item."""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [_stored_part(role, part) for part in parts]


def _stored_part(role: str, part: Any) -> JsonValue:
    if part["type"] == "text" and role == "assistant":
        return {"type": "output_text", "text": part["text"], "annotations": []}
    if part["type"] == "text":
        return {"type": "input_text", "text": part["text"]}
    if part["type"] == "image_url":
        image = part["image_url"]
        return {"type": "input_image", "image_url": image["url"], "detail": image.get("detail", "auto")}
    file = part["file"]
    names = {"fileData": "file_data", "fileUrl": "file_url"}
    return {"type": "input_file", **{names.get(name, name): value for name, value in file.items()}}
