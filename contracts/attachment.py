"""Attachments of messages: images and files, of which a message's text has a stand-in."""

from collections.abc import Iterator
from typing import Self

from pydantic import model_validator

from ..resources.base import JsonModel
from ..resources.content import AttachmentKind, ContentPart, Detail, stand_in
from .text import Count, Text


class Attachment(JsonModel):
    """An image or a file of a message: at a ``url``, or ``stored`` in the journal under this id, with its ``size``.

    Its place in the message is that of its ``stand_in`` in the text. So whoever reads only texts reads that there is an
    attachment, and texts before it may change, such as a secret that is inserted.
    """

    kind: AttachmentKind
    name: Text | None = None
    media_type: Text | None = None
    url: Text | None = None
    stored: str | None = None
    size: Count = 0
    detail: Detail | None = None

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if (self.url is None) == (self.stored is None):
            raise ValueError("an attachment has a URL or is stored")
        return self

    @property
    def stand_in(self) -> str:
        """The text that stands for it, such as ``[image: chart.png, image/png, 84 kB]``."""
        return stand_in(self.kind, self.name, self.media_type, self.size, self.url)

    @classmethod
    def of(cls, part: ContentPart, stored: str | None) -> "Attachment":
        """The attachment of a part of a query's input, whose bytes, if it has any, are stored under that id."""
        return cls(
            kind=part.kind,
            name=part.name,
            media_type=part.media_type,
            url=part.url,
            stored=stored,
            size=len(part.data.content) if part.data else 0,
            detail=part.image_url.detail if part.image_url else None,
        ).without_defaults


def segments(text: str, attachments: tuple[Attachment, ...]) -> Iterator[str | Attachment]:
    """The texts and attachments of a message in order. One whose stand-in is not in the text comes last."""
    start = 0
    unplaced: list[Attachment] = []
    for attachment in attachments:
        place = text.find(attachment.stand_in, start)
        if place < 0:
            unplaced.append(attachment)
            continue
        if before := text[start:place].strip("\n"):
            yield before
        yield attachment
        start = place + len(attachment.stand_in)
    if after := text[start:].strip("\n") if attachments else text:
        yield after
    yield from unplaced
