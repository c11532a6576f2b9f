"""Writes durations, ages and token usage for people."""

from datetime import UTC, datetime, timedelta

from ...conversation.messages.message import TokenUsage


def format_duration(span: timedelta) -> str:
    """A duration such as ``2 min 05 s``; a negative one is written as ``0 s``."""
    seconds = max(0, int(span.total_seconds()))  # the clock of another machine may be ahead of this one's
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes} min {seconds:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def format_age(time: datetime) -> str:
    """How long ago a time was, in its largest unit, such as ``5m``, ``3h`` or ``2d``."""
    seconds = max(0, int((datetime.now(UTC) - time).total_seconds()))
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def format_usage(usage: TokenUsage) -> str:
    """What was used, such as ``3 model calls, 1 tool call, 120 tokens, $0.0123``, as far as the cost is known."""
    counts = (usage.model_calls, "model call"), (usage.tool_calls, "tool call"), (usage.total_tokens, "token")
    texts = [f"{count} {unit}{'' if count == 1 else 's'}" for count, unit in counts]
    return ", ".join(texts if usage.cost is None else [*texts, f"${usage.cost:.4f}"])
