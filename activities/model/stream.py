"""What has a model answered? Its answer is put together from the pieces in which it comes."""

from collections.abc import Callable

from pydantic import BaseModel, ConfigDict

from ...conversation.errors import BrokenReply, EmptyReply
from ...conversation.messages.message import Message, TokenUsage, ToolCall

LONGEST_NAME = 64
MOST_CALLS = 128
"""Tool calls of one message that are carried out; no model in its right mind makes more."""


class _Part(BaseModel):
    """What is read of a server's words; no error repeats them."""

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


class Piece(_Part):
    """One event of a stream of chat completions: the words since the one before."""

    model: str | None = None
    choices: tuple[_Choice, ...] | None = None
    usage: _Usage | None = None


class Answer:
    """An answer as it comes, piece by piece; ``hear`` is told its text."""

    def __init__(self, hear: Callable[[str], None]) -> None:
        self._hear = hear
        self._text: list[str] = []
        self._calls: dict[int, ToolCall] = {}
        self._finish: str | None = None
        self._model: str | None = None
        self._usage: TokenUsage | None = None
        self._begun = False

    def add(self, piece: Piece) -> None:
        """Takes what came."""
        self._model = piece.model or self._model
        if usage := piece.usage:
            self._usage = TokenUsage(**usage.model_dump())
        for choice in (piece.choices or ())[:1]:
            self._begun = True
            self._finish = choice.finish_reason or self._finish
            for text in (choice.delta.content, choice.delta.refusal):
                if text:
                    self._text.append(text)
                    self._hear(text)
            for call in choice.delta.tool_calls or ():
                self._add_call(call)

    def _add_call(self, piece: _Call) -> None:
        so_far = self._calls.get(piece.index, ToolCall(id="", name="", arguments=""))
        function = piece.function
        self._calls[piece.index] = ToolCall(
            id=so_far.id or (piece.id or f"call_{piece.index}")[:LONGEST_NAME],
            name=(so_far.name + ((function and function.name) or ""))[:LONGEST_NAME],
            arguments=so_far.arguments + ((function and function.arguments) or ""),
        )

    def message(self) -> Message:
        """The whole answer; raises EmptyReply or BrokenReply where there is none."""
        if not self._begun:
            raise EmptyReply("the model answered nothing at all")
        if self._finish is None:
            raise BrokenReply("the model's answer broke off before its end")
        usage = self._usage or TokenUsage()
        message = Message(role="assistant", content="".join(self._text), model=self._model, usage=usage)
        calls = tuple(self._calls[index] for index in sorted(self._calls))[:MOST_CALLS]
        return message.model_copy(update={"tool_calls": calls}) if calls else message
