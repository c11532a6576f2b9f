"""Writes the lines of text in the boxes of a diagram."""

import re
import textwrap
from itertools import chain

from ...resources.base import Reference
from ...resources.catalog import Resource
from ..text.escape import escape_control_characters

MAX_TITLE = 60
"""The length at which a title is cut, in characters."""

MAX_LINE = 36
"""The length at which the lines below a title are wrapped, in characters."""

_NOT_IN_XML = re.compile("[\ufffe\uffff]")


def title_of(named: Resource | Reference, namespace: str) -> str:
    """The name of a resource; with its namespace if that is another than ``namespace``."""
    return named.name if named.namespace == namespace else f"{named.namespace}/{named.name}"


def shorten(text: str, length: int) -> str:
    """The text in one line, of at most ``length`` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= length else f"{flat[: length - 1].rstrip()}…"


def box_lines(title: str, *notes: str) -> tuple[str, ...]:
    """A title, and notes in lines that are not too long, without control characters."""
    wrapped = (textwrap.wrap(note, MAX_LINE, break_on_hyphens=False) for note in notes)
    lines = (shorten(title, MAX_TITLE), *chain.from_iterable(wrapped))
    return tuple(_NOT_IN_XML.sub("\ufffd", escape_control_characters(line)).replace("\xa0", " ") for line in lines)
