"""Applies jq filters to a text: run in a process of its own, since a filter can take any time and memory."""

import json

import jq  # type: ignore[import-not-found]  # it has no types
from pydantic import JsonValue


def apply_filters(given: JsonValue) -> str:
    """The ``text`` after each of the ``filters``, as compact JSON; a text that is no JSON stays as it is.

    Several results become a list, none an empty text (ARK: agent execution). Raises ValueError.
    """
    assert isinstance(given, dict)
    text = str(given["text"])
    filters = given["filters"]
    assert isinstance(filters, list)
    for each in filters:
        text = _filtered(text, str(each))
    return text


def _filtered(text: str, program: str) -> str:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    try:
        results = jq.compile(program or ".").input_text(text).all()
    except ValueError as error:
        raise ValueError(f"the filter '{program}' failed: {error}") from None
    if not results:
        return ""
    return json.dumps(results[0] if len(results) == 1 else results, ensure_ascii=False, separators=(",", ":"))
