"""Reads the responses to HTTP tools: what becomes of errors, long texts, other encodings, and what is no text."""

import codecs
import re
from collections.abc import Callable

import httpx

from ...conversation.errors import ToolFailed
from ..runtime.retry import is_retryable, retry_after

MAX_ERROR_TEXT = 5_000
"""Characters of an error's text. An error is cut further, after secrets were removed from it."""

CHARSETS = re.compile(r"ascii|utf-(8|16|32).*|(iso8859|cp|koi8|mac|euc|shift|iso2022|big5|gb|tis)[\w-]*")
"""Python's names for the encodings of texts; decoding takes a time that grows with the length alone."""

_BINARY = re.compile(r"(image|audio|video|font)/|application/(octet-stream|pdf|zip|gzip|x-tar|wasm)")


async def result_of(response: httpx.Response, host: str, redact: Callable[[str], str], limit: int) -> str:
    """The text of a response, of which ``limit`` bytes are read; raises ToolFailed for an error."""
    text, status = await _text(response, redact, limit), f"HTTP {response.status_code} {response.reason_phrase}".strip()
    if response.status_code >= 400:
        retryable, wait = is_retryable(response.status_code), retry_after(response.headers)
        words = " ".join(text.split())[:MAX_ERROR_TEXT]
        said, outage = f"{host} answered {status}: {words}".rstrip(": "), response.status_code >= 500
        raise ToolFailed(said, retryable=retryable, retry_after=wait, outage=outage)
    if response.request.method == "HEAD":
        return "\n".join((status, *(f"{name}: {value}" for name, value in response.headers.items())))
    return text or f"({status}, without a text)"


async def _text(response: httpx.Response, redact: Callable[[str], str], limit: int) -> str:
    kind = response.headers.get("content-type", "")
    data = b""
    async for chunk in response.aiter_bytes(65_536):
        data += chunk
        if len(data) > limit:
            break
    if _BINARY.match(kind) or b"\0" in data[:1_000]:
        return f"[not a text: {kind.partition(';')[0] or 'binary'}, {_size(response, data, limit)}]"
    text = data[:limit].decode(_charset(response.charset_encoding), errors="replace")
    return text if len(data) <= limit else f"{redact(text)}… [cut here: the answer has {_size(response, data, limit)}]"


def _size(response: httpx.Response, data: bytes, limit: int) -> str:
    declared = response.headers.get("content-length", "")
    exact = declared.isdigit() and "content-encoding" not in response.headers
    return f"{int(declared):,} bytes" if exact else f"{'more than ' * (len(data) > limit)}{len(data):,} bytes"


def _charset(given: str | None) -> str:
    """The name of a text encoding, UTF-8 where a server names none: Python also has encodings such as zlib."""
    try:
        name = codecs.lookup(given or "utf-8").name
    except (LookupError, ValueError):
        return "utf-8"
    return name if CHARSETS.fullmatch(name) else "utf-8"
