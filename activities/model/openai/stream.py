"""Puts a model's answer together from the chunks of a stream of chat completions."""

from collections.abc import Callable

from pydantic import BaseModel, ConfigDict

from ....conversation.errors import BrokenReply, EmptyReply
from ....conversation.messages.message import Message, TokenUsage, ToolCall

LONGEST_NAME = 64
"""Characters of a tool's name, and of a tool call's id."""

MAX_TOOL_CALLS = 128
"""Tool calls of one message that are executed; the rest is dropped."""


class _Part(BaseModel):
    """A part of what a server sends. A validation error does not repeat its content."""

    model_config = ConfigDict(hide_input_in_errors=True)


class _Function(_Part):
    name: str | None = None
    arguments: str | None = None


class _Call(_Part):
    index: int = 0
    id: str | None = None
    function: _Function | None = None


class _Delta(_Part):
    content: str | None = None
    refusal: str | None = None
    tool_calls: tuple[_Call, ...] | None = None


class _Choice(_Part):
    delta: _Delta = _Delta()
    finish_reason: str | None = None


class _Usage(_Part):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Chunk(_Part):
    """One event of the stream: what the model has written since the last one."""

    model: str | None = None
    choices: tuple[_Choice, ...] | None = None
    usage: _Usage | None = None


class StreamedAnswer:
    """An answer that grows chunk by chunk; ``on_text`` gets each new piece of its text."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self._text: list[str] = []
        self._tool_calls: dict[int, ToolCall] = {}
        self._finish: str | None = None
        self._model: str | None = None
        self._usage: TokenUsage | None = None
        self._begun = False

    def add(self, chunk: Chunk) -> None:
        """Adds a chunk."""
        self._model = chunk.model or self._model
        if usage := chunk.usage:
            self._usage = TokenUsage(**usage.model_dump())
        for choice in (chunk.choices or ())[:1]:
            self._begun = True
            self._finish = choice.finish_reason or self._finish
            for text in (choice.delta.content, choice.delta.refusal):
                if text:
                    self._text.append(text)
                    self._on_text(text)
            for call in choice.delta.tool_calls or ():
                self._add_call(call)

    def _add_call(self, piece: _Call) -> None:
        so_far = self._tool_calls.get(piece.index, ToolCall(id="", name="", arguments=""))
        function = piece.function
        self._tool_calls[piece.index] = ToolCall(
            id=so_far.id or (piece.id or f"call_{piece.index}")[:LONGEST_NAME],
            name=(so_far.name + ((function and function.name) or ""))[:LONGEST_NAME],
            arguments=so_far.arguments + ((function and function.arguments) or ""),
        )

    def message(self) -> Message:
        """The whole answer. Raises EmptyReply or BrokenReply where the stream held none."""
        if not self._begun:
            raise EmptyReply("the model answered nothing at all")
        if self._finish is None:
            raise BrokenReply("the model's answer broke off before its end")
        usage = self._usage or TokenUsage()
        message = Message(role="assistant", content="".join(self._text), model=self._model, usage=usage)
        calls = tuple(self._tool_calls[index] for index in sorted(self._tool_calls))[:MAX_TOOL_CALLS]
        return message.model_copy(update={"tool_calls": calls}) if calls else message
