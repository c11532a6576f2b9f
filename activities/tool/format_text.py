"""The built-in tool ``format-text``: formats a text in one of several styles."""

import textwrap
from collections.abc import Callable

from ...resources.base import JsonObject

STYLES: dict[str, Callable[[str], str]] = {
    "upper": str.upper,
    "lower": str.lower,
    "title": str.title,
    "sentence": str.capitalize,
    "one-line": lambda text: " ".join(text.split()),
    "bullets": lambda text: "\n".join(f"- {line.strip()}" for line in text.splitlines() if line.strip()),
    "numbered": lambda text: "\n".join(
        f"{number}. {line}" for number, line in enumerate(filter(None, map(str.strip, text.splitlines())), start=1)
    ),
    "wrap": textwrap.fill,
}


async def format_text(arguments: JsonObject) -> str:
    """``text`` in the given ``style``. ``width`` (default: 70 columns) is only used by the style ``wrap``."""
    text, style, width = str(arguments["text"]), str(arguments["style"]), arguments.get("width")
    if style == "wrap" and isinstance(width, int):
        return textwrap.fill(text, width)
    return STYLES[style](text)
