"""Hooks for BATON_REDACT, which are called in processes of their own."""

import re

MAIL = re.compile(r"[\w.-]+@[\w-]+\.[a-z]+")


def mails(text: str) -> str:
    """Replaces addresses."""
    print("a hook may print")
    return MAIL.sub("[email]", text)


def failing(text: str) -> str:
    """Fails for a text with an address; the text of the error repeats it."""
    if MAIL.search(text):
        raise RuntimeError(text)
    return text


def slow(text: str) -> str:
    """Needs years for a text with an address, and keeps Python's lock meanwhile."""
    return re.sub(r"(a+)+$", "", "a" * 60 + "!") if MAIL.search(text) else text


def wrong(text: str) -> int:
    """Returns no text."""
    return len(text)
