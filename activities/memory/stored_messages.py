"""The messages of a Memory's service: those of OpenAI's chat completions, by themselves or in a record."""

from collections.abc import Iterable, Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from ...conversation.errors import MemoryRejected
from ...conversation.messages.message import Message, ToolCall

NO_RESULT = "No result was kept."


class _Function(BaseModel):
    name: str = ""
    arguments: str = ""


class _Call(BaseModel):
    id: str = ""
    function: _Function = _Function()


class _Part(BaseModel):
    text: str = ""


class _Stored(BaseModel):
    """A message. What else a service stores with it is ignored."""

    role: str
    content: str | list[_Part] | None = None
    name: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None

    def as_message(self) -> Message:
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content or ())
        role = {"developer": "system"}.get(self.role, self.role)
        calls = [
            ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments) for call in self.calls
        ]
        return Message.model_validate(
            {
                "role": role if role in ("system", "assistant", "tool") else "user",
                "content": content,
                "name": self.name,
                "tool_calls": tuple(calls) if role == "assistant" else (),
                "tool_call_id": self.tool_call_id,
            }
        )

    @property
    def calls(self) -> list[_Call]:
        return [call for call in self.tool_calls or () if call.id and call.function.name]


class _Record(BaseModel):
    message: _Stored


class StoredPage(BaseModel):
    """One answer: ``{messages, total}``, or ``{items, hasMore, nextCursor}``."""

    model_config = ConfigDict(hide_input_in_errors=True)

    messages: list[_Record | _Stored] | None = None
    items: list[_Record | _Stored] | None = None
    total: int | None = None
    has_more: bool = Field(False, alias="hasMore")
    next_cursor: JsonValue = Field(None, alias="nextCursor")

    @classmethod
    def read(cls, data: bytes, memory: str) -> Self:
        """The page in a body. Raises MemoryRejected for anything else."""
        try:
            page = cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise MemoryRejected(f"{memory} gives no list of messages: {where}: {first['msg']}") from None
        if page.messages is None and page.items is None:
            raise MemoryRejected(f"{memory} gives no list of messages: neither 'messages' nor 'items'")
        return page

    @property
    def said(self) -> list[Message]:
        """The messages, in their order."""
        found = self.messages if self.messages is not None else self.items or []
        return [(each.message if isinstance(each, _Record) else each).as_message() for each in found]


def with_results(messages: Iterable[Message]) -> list[Message]:
    """The messages, such that each tool call has one result and each result has its call: else models refuse them."""
    kept: list[Message] = []
    unanswered: dict[str, ToolCall] = {}
    for message in messages:
        if message.role == "tool":
            if unanswered.pop(message.tool_call_id or "", None):
                kept.append(message)
            continue
        kept += [call.result_message(NO_RESULT) for call in unanswered.values()]
        kept.append(message)
        unanswered = {call.id: call for call in message.tool_calls}
    return [*kept, *(call.result_message(NO_RESULT) for call in unanswered.values())]


def holds(stored: Sequence[Message], wanted: Sequence[Message], first: int) -> bool:
    """Whether messages stand in a row among those that are stored, from the place ``first`` on."""
    keys, sought = [*map(_key, stored)], [*map(_key, wanted)]
    return any(keys[place : place + len(sought)] == sought for place in range(first, len(keys) - len(sought) + 1))


def _key(message: Message) -> tuple[object, ...]:
    return message.role, message.content, message.tool_call_id, tuple(call.id for call in message.tool_calls)
