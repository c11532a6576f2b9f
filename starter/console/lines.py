"""Prints texts on a console, with escaped control characters: nothing that a client or a server says is a command."""

from rich.console import Console
from rich.text import Text

from ..text import escape_control_characters, escape_line


def print_line(console: Console, text: Text) -> None:
    """Prints a line; its continuation lines are indented, so that untrusted text can't imitate Baton's output."""
    console.print(Text("\n    ").join(escaped(text).split("\n")), soft_wrap=True)


def escaped(text: Text) -> Text:
    """The text, which may have several lines, without other control characters."""
    text.plain = escape_control_characters(text.plain)
    return text


def one_line(text: Text) -> Text:
    """The text as one line, which is truncated where it is not printed in full."""
    text.plain = escape_line(text.plain)
    text.no_wrap = True
    text.overflow = "ellipsis"
    return text
