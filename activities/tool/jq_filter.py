"""Applies jq filters to a text, in a bounded process: a filter may need any amount of time and memory."""

import json

import jq  # type: ignore[import-not-found]  # it has no types
from pydantic import JsonValue


def apply_filters(request: JsonValue) -> str:
    """Applies the ``filters`` in order to the ``text``, giving compact JSON. A text that is not JSON is unchanged.

    Several results of a filter become a list, no result an empty text (ARK: agent execution). Raises ValueError.
    """
    assert isinstance(request, dict)
    text = str(request["text"])
    filters = request["filters"]
    assert isinstance(filters, list)
    for program in filters:
        text = _filtered(text, str(program))
    return text


def _filtered(text: str, program: str) -> str:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    try:
        # As texts: in Python's numbers, large integers would be changed.
        results = jq.compile(f"({program or '.'}\n) | tojson").input_text(text).all()
    except ValueError as error:
        raise ValueError(f"the filter '{program}' failed: {error}") from None
    if not results:
        return ""
    return str(results[0]) if len(results) == 1 else f"[{','.join(results)}]"
