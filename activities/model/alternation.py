"""Converts a conversation for APIs in which ``user`` and ``assistant`` messages alternate, starting with the user.

The model's own messages become assistant messages, those of other speakers user messages with their names: such an API
has only two speakers, and a model would continue a last message of the assistant.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ...contracts.message import Message, ToolCall
from ...contracts.text import parse_json
from ...resources.base import JsonObject
from .answer import reasoning_of
from .provider import Attached, ModelRequest

OPENING = "(The conversation so far:)"
"""The first user message of a conversation that begins with the model's own message."""

PROMPT = "(It is your turn again.)"
"""The last user message of a conversation that ends with the model's own message."""

NO_RESULT = "(no result)"
"""The result of a tool call without one in the conversation: such an API requires one for every call."""


@dataclass(frozen=True)
class CallBlock:
    """A tool call of the model. Its id is numbered, as servers differ in the ids that they accept."""

    id: str
    name: str
    arguments: JsonObject
    text: str = "{}"
    """The arguments as the model has written them."""


@dataclass(frozen=True)
class ResultBlock:
    """The result of the tool call with this id: texts, images and files."""

    id: str
    segments: tuple[str | Attached, ...]

    @property
    def text(self) -> str:
        """The result as one text; empty if it has images or files, which only ``segments`` has."""
        return self.segments[0] if len(self.segments) == 1 and isinstance(self.segments[0], str) else ""


@dataclass(frozen=True)
class ReasoningBlock:
    """What the model has thought before its tool calls, in the API's own form."""

    content: JsonObject


Block = str | Attached | CallBlock | ResultBlock | ReasoningBlock


class Entry(NamedTuple):
    """One message of such an API; tool results are its first blocks."""

    role: Literal["user", "assistant"]
    blocks: list[Block]


def system_prompt(messages: Sequence[Message]) -> str:
    """The joined texts of all messages with the role ``system``."""
    return "\n\n".join(message.content for message in messages if message.role == "system" and message.content.strip())


def alternating(request: ModelRequest, source: str = "") -> list[Entry]:
    """The conversation without its system prompt, as alternating messages of user and assistant.

    It contains the reasoning before tool calls if the model ``source`` has sent it.
    """
    turns = _Turns(request, source)
    for message in request.messages:
        turns.add(message)
    return turns.complete()


def rejects_thinking(setting: object, entries: Sequence[Entry], *, must_use: bool) -> bool:
    """Whether Claude's API would reject a call with this property ``thinking``.

    A model that must use a tool may not think. While it uses tools, ``enabled`` requires that it has thought before
    them. It has not if another model, such as the one whose fallback this is, made the calls, or if a secret in its
    thoughts was redacted.
    """
    kind = setting.get("type") if isinstance(setting, dict) else None
    if must_use:
        return kind in ("enabled", "adaptive")
    is_using_tools = any(isinstance(block, ResultBlock) for block in entries[-1].blocks)
    return kind == "enabled" and is_using_tools and not isinstance(entries[-2].blocks[0], ReasoningBlock)


def without_reasoning(entries: Sequence[Entry], but: Callable[[JsonObject], bool] = lambda _: False) -> list[Entry]:
    """The entries for a model that may not think, or that accepts no reasoning ``but`` some."""
    return [
        entry._replace(
            blocks=[each for each in entry.blocks if not isinstance(each, ReasoningBlock) or but(each.content)]
        )
        for entry in entries
    ]


class _Turns:
    """Collects entries, and the tool calls of the last one that have no result yet, with their original ids."""

    def __init__(self, request: ModelRequest, source: str) -> None:
        self._request = request
        self._source = source
        self._entries: list[Entry] = []
        self._open: list[tuple[str, CallBlock]] = []
        self._calls = 0

    def add(self, message: Message) -> None:
        """Adds a message."""
        if message.role == "user":
            self._add_segments(self._named(message))
        elif message.role == "tool":
            self._add_result(message)
        elif message.role == "assistant":
            self._close_calls()
            is_own = message.name in (None, self._request.speaker)
            if is_own and self._request.tools and message.tool_calls:
                for reasoning in reasoning_of(message, self._source):
                    self._put("assistant", ReasoningBlock(reasoning))
            text = message.content if is_own else f"# {message.name}:\n{message.content}"
            self._say("assistant" if is_own else "user", text if message.content.strip() else "")
            caller = None if is_own and self._request.tools else message.name or "assistant"
            for call in message.tool_calls:
                self._add_call(call, caller)

    def complete(self) -> list[Entry]:
        """The entries, of which the first and the last are the user's."""
        self._close_calls()
        if not self._entries or self._entries[-1].role == "assistant":
            self._say("user", PROMPT)
        if self._entries[0].role == "assistant":
            self._entries.insert(0, Entry("user", [OPENING]))
        return self._entries

    def _add_call(self, call: ToolCall, caller: str | None) -> None:
        """Adds a tool call as a block; as text if it is of another ``caller``, or if the model has no tools."""
        if caller is not None:
            self._say("user", f"# {caller} calls {call.name}: {call.arguments}")
            return
        self._calls += 1
        use = CallBlock(f"call_{self._calls}", call.name, _arguments(call), call.arguments or "{}")
        self._open.append((call.id, use))
        self._put("assistant", use)

    def _add_result(self, message: Message) -> None:
        for index, (call_id, use) in enumerate(self._open):
            if call_id == message.tool_call_id:
                self._open.pop(index)
                self._put("user", ResultBlock(use.id, tuple(self._request.segments(message)) or (NO_RESULT,)))
                return
        self._say("user", f"# Result of {message.name}:\n{message.content}")

    def _close_calls(self) -> None:
        for _, use in self._open:
            self._put("user", ResultBlock(use.id, (NO_RESULT,)))
        self._open = []

    def _named(self, message: Message) -> list[str | Attached]:
        """The segments of a user's message, under the name of the person who has sent it, if it has one."""
        segments = [*self._request.segments(message)]
        match segments:
            case [str(text), *rest] if message.name:
                return [f"# {message.name}:\n{text}", *rest]
            case [_, *_] if message.name:
                return [f"# {message.name}:", *segments]
            case _:
                return segments

    def _add_segments(self, segments: Iterable[str | Attached]) -> None:
        for segment in segments:
            if isinstance(segment, str):
                self._say("user", segment)
            else:
                self._put("user", segment)

    def _say(self, role: Literal["user", "assistant"], text: str) -> None:
        if text.strip():
            self._put(role, text)

    def _put(self, role: Literal["user", "assistant"], block: Block) -> None:
        if not self._entries or self._entries[-1].role != role:
            self._entries.append(Entry(role, []))
        blocks = self._entries[-1].blocks
        results = sum(isinstance(existing, ResultBlock) for existing in blocks)
        blocks.insert(results if isinstance(block, ResultBlock) else len(blocks), block)


def _arguments(call: ToolCall) -> JsonObject:
    """The arguments of a call. A text that is not a JSON object, which no such API accepts, becomes one argument."""
    try:
        value = parse_json(call.arguments or "{}")
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"arguments": call.arguments}
