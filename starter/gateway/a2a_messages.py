"""Messages of A2A's clients: the question of a new task, and what a message decides in a task that waits."""

import json
import re
from collections.abc import Mapping, Sequence

from a2a.types import Message, Part
from a2a.utils.errors import InvalidParamsError
from google.protobuf.struct_pb2 import Struct, Value
from pydantic import Field, JsonValue, ValidationError

from ...activities.agent.a2a import json_of
from ...contracts.decisions import MAX_REASON
from ...resources.base import JsonModel, JsonObject, Text
from ...resources.content import part_of_bytes, part_of_url
from .a2a_tasks import TaskView
from .errors import BadRequestError


class Options(JsonModel):
    """What a message may say about its run, as ``{"baton": {…}}`` in its metadata."""

    parameters: dict[str, str] = {}
    session: JsonObject = {}
    timeout: str | None = None
    budget: JsonObject | None = None


class ApproveCommand(JsonModel):
    """Data by which a message approves a call, optionally with other arguments."""

    approve: Text
    arguments: JsonObject | None = None
    reason: str = Field("", max_length=MAX_REASON)
    remember: bool = False


class RejectCommand(JsonModel):
    """Data by which a message rejects a call."""

    reject: Text
    reason: str = Field("", max_length=MAX_REASON)
    remember: bool = False


class ReplyCommand(JsonModel):
    """Data by which a message replies to a question."""

    reply: Text
    text: Text


class DeclineCommand(JsonModel):
    """Data by which a message declines the question of a server."""

    decline: Text
    reason: str = Field("", max_length=MAX_REASON)


COMMANDS: Mapping[str, type[ApproveCommand | RejectCommand | ReplyCommand | DeclineCommand]] = {
    "approve": ApproveCommand,
    "reject": RejectCommand,
    "reply": ReplyCommand,
    "decline": DeclineCommand,
}

Command = ApproveCommand | RejectCommand | ReplyCommand | DeclineCommand

_WRITTEN = re.compile(r"(approve|reject) (\S+)(?:\s+(.+))?", re.DOTALL)
"""A decision as text. It names the call: a mere yes could be meant for another one."""

_ID = re.compile(r"[0-9a-f]{10}")
"""The id of a decision, as ``decision_id`` makes it."""


def _json_of(value: Value | Struct) -> JsonValue:
    """The JSON value of data or metadata. Raises BadRequestError for NaN and Infinity, which parsers accept."""
    try:
        return json_of(value)
    except ValueError:
        raise BadRequestError("the message has NaN, Infinity or a number that is too large: it is not JSON") from None


def options_of(message: Message) -> Options:
    """What a message says about its run. Raises BadRequestError for numbers that JSON has not."""
    metadata = _json_of(message.metadata)
    baton = metadata.get("baton") if isinstance(metadata, dict) else None
    return Options.model_validate(baton or {})


def text_of(parts: Sequence[Part]) -> str:
    """The texts of parts, and their data as JSON. Raises BadRequestError for files."""
    texts = []
    for part in parts:
        match part.WhichOneof("content"):
            case "text":
                texts.append(part.text)
            case "data":
                texts.append(json.dumps(_json_of(part.data), ensure_ascii=False))
            case _:
                raise BadRequestError("a message to a task that is working has texts and data only", param="parts")
    return "\n\n".join(texts)


def input_of(parts: Sequence[Part]) -> str | list[JsonObject]:
    """The question of a message. Raises BadRequestError."""
    if all(part.WhichOneof("content") in ("text", "data") for part in parts):
        return text_of(parts)
    content: list[JsonObject] = []
    for number, part in enumerate(parts):
        name = part.filename or None
        try:
            match part.WhichOneof("content"):
                case "raw":
                    made = part_of_bytes(part.raw, part.media_type or "application/octet-stream", name)
                case "url":
                    made = part_of_url(part.url, name)
                case _:
                    content.append({"type": "text", "text": text_of([part])})
                    continue
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            reason = first["msg"].removeprefix("Value error, ")
            raise BadRequestError(f"parts.{number}: {reason}", param="parts") from None
        if made.kind == "image":
            made = made.as_image(None)
        content.append(made.model_dump(mode="json", exclude_none=True))
    return [{"role": "user", "content": [*content]}]


def command_of(parts: Sequence[Part], view: TaskView) -> Command | None:
    """What a message decides; None if it decides nothing, and the task waits for nothing.

    Raises InvalidParamsError for a message that is unclear, and BadRequestError for one with files.
    """
    data = [_json_of(part.data) for part in parts if part.WhichOneof("content") == "data"]
    for value in data:
        names = [name for name in COMMANDS if isinstance(value, dict) and name in value]
        if not names:
            continue
        if len(names) > 1 or len(data) > 1:
            raise InvalidParamsError("a message decides one thing only")
        return COMMANDS[names[0]].model_validate(value)
    text = text_of(parts)
    if written := _WRITTEN.fullmatch(text.strip()):
        verb, call, reason = written.groups()
        # One that comes too late is for the run to refuse: it is neither a message nor a reply to another question.
        if call in view.pending or _ID.fullmatch(call):
            return COMMANDS[verb].model_validate({verb: call, "reason": reason or ""})
    if not view.pending:
        return None
    pending = [*view.pending.values()]
    if len(pending) == 1 and pending[0].kind == "question":
        return ReplyCommand(reply=pending[0].wait, text=text)
    waits = ", ".join(f"{wait.kind} {wait.wait}" for wait in pending)
    raise InvalidParamsError(
        f"it is not clear what the message decides; the task waits for: {waits}. Send one part with data: "
        '{"approve": ID, "arguments": {…}}, {"reject": ID, "reason": …}, {"reply": ID, "text": …} or {"decline": ID}, '
        "or the text 'approve ID' or 'reject ID REASON'"
    )
