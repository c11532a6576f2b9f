"""Texts of a conversation: the type `Text`, the bytes of a text as JSON, and truncating it."""

from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import to_json

MAX_MESSAGE = 64_000
"""Bytes of one message, as JSON, that a workflow's history holds; the journal holds the whole message."""


def repair_surrogates(text: str) -> str:
    """The text with pairs of surrogates joined to one character; a surrogate without its partner becomes U+FFFD.

    JSON can hold lone surrogates, but no database can.
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


Text = Annotated[str, AfterValidator(repair_surrogates)]
"""A text from a model, a tool or a person, without lone surrogates."""


def byte_size(text: str) -> int:
    """The bytes of a text as JSON."""
    return len(to_json(text))


def truncate(text: str, limit: int = MAX_MESSAGE) -> str:
    """The text if it fits into ``limit`` bytes; else its beginning and a marker with its full length."""
    kept = text
    while (size := byte_size(kept)) > limit + 2:
        kept = kept[: len(kept) * limit // size]
    return text if kept == text else f"{kept}… [cut here: {len(text):,} characters in all]"
