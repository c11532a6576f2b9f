"""Makes text that a model wrote safe to print: control characters become visible and command no terminal."""

_CONTROL_CHARACTERS = [*range(0x20), 0x7F, *range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
"""Control characters, and those that change the direction of the text after them."""

_REPLACEMENTS = {
    code: chr(0x2400 + code) if code < 0x20 else "\ufffd" for code in _CONTROL_CHARACTERS if chr(code) not in "\t\n"
} | {ord("\r"): " "}
"""What stands in place of each: its picture in Unicode where there is one."""


def escape_control_characters(text: str) -> str:
    """The text with a visible character in place of each control character, so that its length stays the same."""
    return text.translate(_REPLACEMENTS)
