"""How is a text shown that a model has written? As it is, but for what would command the terminal."""

_COMMANDS = [*range(0x20), 0x7F, *range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
"""Control characters, and those that turn around the direction of what follows."""

_SHOWN = {code: chr(0x2400 + code) if code < 0x20 else "\ufffd" for code in _COMMANDS if chr(code) not in "\t\n"}


def harmless(text: str) -> str:
    """The text, just as long, with a picture of each control character in its place."""
    return text.translate({**_SHOWN, ord("\r"): " "})
