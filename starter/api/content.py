"""Images and files in the input of a run: ``baton.Image`` and ``baton.File``."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import JsonValue, ValidationError

from ...resources.content import ContentPart, Detail, part_of_bytes, part_of_file, part_of_url


class File:
    """A file: its path, its bytes, or its ``https://`` or ``http://`` URL, which the model's server fetches.

    Bytes need a ``media_type``, such as ``application/pdf``; otherwise the name tells it. Raises OSError for a file
    that can't be read, and ValueError for one without a media type or with another kind of URL.
    """

    def __init__(self, source: str | Path | bytes, *, media_type: str | None = None, name: str | None = None) -> None:
        if not isinstance(source, str | Path | bytes):
            raise TypeError(f"source is {type(source).__name__}, must be a path, bytes, or a URL")
        self._part = _part(source, media_type, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._part.shown!r})"

    @property
    def part(self) -> ContentPart:
        """The part of a message."""
        return self._part


class Image(File):
    """An image, as a ``File``. ``detail`` is how closely OpenAI's models look at it: ``auto``, ``low`` or ``high``.

    Models take PNG, JPEG, GIF and WebP.
    """

    def __init__(
        self,
        source: str | Path | bytes,
        *,
        media_type: str | None = None,
        name: str | None = None,
        detail: Detail | None = None,
    ) -> None:
        super().__init__(source, media_type=media_type, name=name)
        self._part = self._part.as_image(detail)


def _part(source: str | Path | bytes, media_type: str | None, name: str | None) -> ContentPart:
    try:
        if isinstance(source, bytes):
            if media_type is None:
                raise ValueError("bytes need a media_type, such as 'image/png'")
            return part_of_bytes(source, media_type, name)
        if isinstance(source, str) and source.startswith(("https://", "http://", "data:")):
            return part_of_url(source, name)
        return part_of_file(Path(source), media_type, name)
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None


RunInput = str | Mapping[str, JsonValue] | Sequence[str | File | Mapping[str, Any]]
"""The input of a run: a text, a mapping such as ``{"goal": "Review draft X"}``, or a list.

A list has texts, images and files, ``["Describe this:", baton.Image("chart.png")]``; or the messages of a conversation,
``{"role": "user", "content": …}``, whose content is a text or such a list. The last one is the question.
"""


def input_fields(value: RunInput) -> dict[str, Any]:
    """The fields of a query for an input; of a mapping, its only field ``goal``, or JSON, as tools take it.

    Raises TypeError for a list of other values, and for a mapping with a value that JSON does not have.
    """
    if isinstance(value, str):
        return {"input": value}
    if isinstance(value, Mapping):
        goal = value.get("goal")
        if isinstance(goal, str) and len(value) == 1:
            return {"input": goal}
        try:
            return {"input": json.dumps(dict(value), ensure_ascii=False, allow_nan=False)}
        except (TypeError, ValueError) as error:
            raise TypeError(f"input can't be written as JSON: {error}") from None
    if all(isinstance(message, Mapping) and "role" in message for message in value):
        messages = [dict(message) for message in value if isinstance(message, Mapping)]
        return {"type": "messages", "input": [{**message, "content": _content(message)} for message in messages]}
    return {"type": "messages", "input": [{"role": "user", "content": _parts(value)}]}


def _content(message: Mapping[str, Any]) -> object:
    content = message.get("content")
    return _parts(content) if isinstance(content, list | tuple) else content


def _parts(values: Sequence[Any]) -> list[Any]:
    parts: list[Any] = []
    for value in values:
        if not isinstance(value, str | File | Mapping):
            what = "a list of texts, images and files, or of messages with a role"
            raise TypeError(f"input has {type(value).__name__}, must be {what}")
        if isinstance(value, File):
            parts.append(value.part.model_dump(mode="json", exclude_unset=True))
        else:
            parts.append({"type": "text", "text": value} if isinstance(value, str) else dict(value))
    return parts
