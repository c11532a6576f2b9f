"""Texts of a conversation: the type `Text`, reading a text as JSON, its bytes as JSON, and truncating it."""

import json
from typing import Annotated

from pydantic import AfterValidator, JsonValue
from pydantic_core import to_json

MAX_MESSAGE = 64_000
"""Bytes of one message, as JSON, that a workflow's history holds; the journal holds the whole message."""


BYTES_PER_TOKEN = 4
"""Bytes of text that count as one token before a server has counted them: only that knows how the model counts.

Bytes, not characters: a Chinese character has three of them, and is about one token.
"""


def repair_surrogates(text: str) -> str:
    """The text with pairs of surrogates joined to one character; a surrogate without its partner becomes U+FFFD.

    JSON can hold lone surrogates, but no database can.
    """
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


Text = Annotated[str, AfterValidator(repair_surrogates)]
"""A text from a model, a tool or a person, without lone surrogates."""


MAX_JSON = 4_000_000
"""Characters of a text that is read as JSON: reading more would hold up all that waits."""


def parse_json(text: str, *, constants: bool = True) -> JsonValue:
    """The JSON value of an untrusted text; ``constants``: it may say NaN or Infinity.

    Raises ValueError, also where it is too long, or nested too deeply.
    """
    if len(text) > MAX_JSON:
        raise ValueError(f"it is longer than {MAX_JSON:,} characters")
    try:
        value: JsonValue = json.loads(text, parse_constant=float if constants else _refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"it says {constant}")


def byte_size(text: str) -> int:
    """The bytes of a text as JSON."""
    return len(to_json(text))


def truncate(text: str, limit: int = MAX_MESSAGE) -> str:
    """The text if it fits into ``limit`` bytes; else its beginning and a marker with its full length."""
    kept = text[: limit + 2]  # each character is a byte at least
    while (size := byte_size(kept)) > limit + 2:
        kept = kept[: len(kept) * limit // size]
    return text if kept == text else f"{kept}… [cut here: {len(text):,} characters in all]"


MAX_COUNT = 10**12
"""The largest count that is believed: counts are stored in columns of 64 bits, and summed up there."""

Count = Annotated[int, AfterValidator(lambda count: min(max(count, 0), MAX_COUNT))]
