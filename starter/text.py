"""Text for people: escaped control characters, numbers with units, and fields one below the other."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import JsonValue

    from ..contracts.message import TokenUsage

_CONTROL_CHARACTERS = [*range(0x20), 0x7F, *range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
"""Control characters, including those that change the text direction."""

_REPLACEMENTS = {
    code: chr(0x2400 + code) if code < 0x20 else "\ufffd" for code in _CONTROL_CHARACTERS if chr(code) not in "\t\n"
} | {ord("\r"): " "}
"""The visible replacements: Unicode's control pictures where they exist."""


_LINE_REPLACEMENTS = _REPLACEMENTS | {ord("\t"): "␉", ord("\n"): "␊", 0x2028: "\ufffd", 0x2029: "\ufffd"}


def escape_control_characters(text: str) -> str:
    """The text with visible characters instead of control characters; its length does not change."""
    return text.translate(_REPLACEMENTS)


def escape_line(text: str) -> str:
    """The same for a text that is printed in one line: also tabs and line ends are visible characters."""
    return text.translate(_LINE_REPLACEMENTS)


def format_duration(span: timedelta) -> str:
    """A duration such as ``2 min 05 s``, and from two days on ``7 d 00 h``; a negative one is written as ``0 s``."""
    seconds = max(0, int(span.total_seconds()))  # the clock of another machine may be ahead of this one's
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours < 48 else f"{hours // 24} d {hours % 24:02} h"


def format_age(time: datetime) -> str:
    """The age of a time in its largest unit, such as ``5m``, ``3h`` or ``2d``."""
    seconds = max(0, int((datetime.now(UTC) - time).total_seconds()))
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def format_usage(usage: "TokenUsage") -> str:
    """The usage as text, such as ``3 model calls, 1 tool call, 120 tokens, $0.0123``; the cost only if it is known."""
    counts = (usage.model_calls, "model call"), (usage.tool_calls, "tool call"), (usage.total_tokens, "token")
    texts = [f"{count} {unit}{'' if count == 1 else 's'}" for count, unit in counts]
    return ", ".join(texts if usage.cost is None else [*texts, f"${usage.cost:.4f}"])


def field_lines(fields: Mapping[str, str]) -> Iterator[str]:
    """Names and values, one below the other; the lines of a longer value are indented below its name."""
    width = max(map(len, fields)) + 1
    for name, value in fields.items():
        if "\n" in value:
            yield f"{name}:"
            yield from (f"  {line}" for line in value.splitlines())
        else:
            yield f"{name + ':':<{width}}  {value}"


MAX_VALUE_BYTES = 160
"""The length to which a value is truncated in a line of text."""


def assignments(data: "Mapping[str, JsonValue]") -> str:
    """Values with their names in one line, as in ``agent=one  text="two words"``."""
    return "  ".join(f"{name}={_one_line(value)}" for name, value in data.items())


def _one_line(value: "JsonValue") -> str:
    from ..contracts.text import truncate  # noqa: PLC0415  # commands that print no events need not load it

    if isinstance(value, list):
        return ",".join(map(_one_line, value))
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = truncate(text, MAX_VALUE_BYTES)
    return text if text and not set(text) & set(' "\n\t') else json.dumps(text, ensure_ascii=False)


def as_yaml(value: "JsonValue") -> str:
    """A value as YAML, with texts of several lines as blocks."""
    import yaml  # noqa: PLC0415  # most commands print none

    class BlockTextDumper(yaml.SafeDumper):
        """Writes multi-line strings as blocks."""

    def represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    BlockTextDumper.add_representer(str, represent_text)
    return yaml.dump(value, Dumper=BlockTextDumper, sort_keys=False, allow_unicode=True, width=120).rstrip()
