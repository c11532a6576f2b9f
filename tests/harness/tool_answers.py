"""Reads tools' answers as a model was sent them."""

import re


def plain_answer(content: str) -> str:
    """A tool's answer without the lines that mark it as untrusted."""
    marked = re.fullmatch(r"The answer of .*\n(untrusted-content-\w+)\n(.*)\n\1", content, re.DOTALL)
    return marked[2] if marked else content
