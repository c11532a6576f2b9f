"""Redacts the texts of a message that a model, a tool or a server has chosen."""

from collections.abc import Callable

from ...conversation.messages.message import Message, ToolCall
from ...conversation.messages.person_decision import PersonDecision

Redact = Callable[[str], str]
"""Gives a text with every known secret replaced."""


def redacted(message: Message, redact: Redact) -> Message:
    """The message with redacted texts, also those of its calls, of its place on a server, and of a decision."""
    changed: dict[str, object] = {"content": redact(message.content)}
    if message.model:
        changed["model"] = redact(message.model)
    if message.remote:
        remote = {name: redact(text) for name, text in message.remote.model_dump(by_alias=False).items()}
        changed["remote"] = message.remote.model_copy(update=remote)
    if message.decision:
        changed["decision"] = _redacted_decision(message.decision, redact)
    if message.tool_calls:
        changed["tool_calls"] = tuple(_redacted_call(call, redact) for call in message.tool_calls)
    return message.model_copy(update=changed)


def _redacted_call(call: ToolCall, redact: Redact) -> ToolCall:
    changed: dict[str, object] = {name: redact(getattr(call, name)) for name in ("id", "name", "arguments")}
    if call.extra:
        extra = {name: redact(text) for name, text in call.extra.model_dump(by_alias=False).items()}
        changed["extra"] = call.extra.model_copy(update=extra)
    return call.model_copy(update=changed)


def _redacted_decision(decision: PersonDecision, redact: Redact) -> PersonDecision:
    texts = {"reason": redact(decision.reason), "arguments": decision.arguments}
    if decision.arguments:
        texts["arguments"] = redact(decision.arguments)
    return decision.model_copy(update={name: text for name, text in texts.items() if text})
