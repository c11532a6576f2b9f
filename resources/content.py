"""Messages in a query's input, as in OpenAI's chat completions: texts, images and files."""

import base64
import binascii
import mimetypes
import re
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, model_validator

from .base import BY_SHAPE, LIST, SINGLE, FieldError, JsonModel, Text

MAX_ATTACHED = 1_000_000
"""Bytes of all images and files in one query, which Temporal carries once, in the input of the run.

Temporal accepts 2 MB for an input. These bytes are 1.34 MB there, and the manifests of the run are part of it, too.
"""

MAX_SHOWN = 200
"""Characters of a name or an address in the text that stands for an image or a file."""

AttachmentKind = Literal["image", "file"]
Detail = Literal["auto", "low", "high"]


class Data(NamedTuple):
    """Bytes with their media type."""

    media_type: str
    content: bytes


def stand_in(kind: AttachmentKind, name: str | None, media_type: str | None, size: int, url: str | None) -> str:
    """The text that stands for an image or a file, such as ``[image: chart.png, image/png, 84 kB]``.

    An address is shown without its query, which may contain a signature.
    """
    address = url.partition("?")[0].partition("#")[0] if url else None
    shown = [_plain(text) for text in (name, address, media_type) if text]
    return f"[{kind}: {', '.join([*shown, *([] if url else [_size(size)])])}]"


def _plain(text: str) -> str:
    """The text on one line, without the characters that delimit a stand-in or a parameter."""
    return re.sub(r"[\x00-\x1f\x7f\[\]{}]+", "_", text)[:MAX_SHOWN]


def _size(size: int) -> str:
    if size < 1_000:
        return f"{size} bytes"
    return f"{size / 1_000:.0f} kB" if size < 1_000_000 else f"{size / 1_000_000:.1f} MB"


_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w-]+=[^;,]*)*;base64,", re.ASCII)


def data_url(data: Data) -> str:
    """The URL with the data itself."""
    return f"data:{data.media_type};base64,{base64.b64encode(data.content).decode()}"


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("is not base64") from None


def _parse_data_url(url: str) -> Data:
    match = _DATA_URL.match(url)
    if match is None:
        raise ValueError("is not a data URL: write data:MEDIA/TYPE;base64,…")
    return Data(match[1].lower(), _decode(url[match.end() :]))


def _check_url(url: str) -> str:
    if url.startswith("data:"):
        _parse_data_url(url)
    elif not re.match(r"https?://[^\s/]", url):
        raise ValueError("must be an https://, http:// or data: URL")
    return url


Url = Annotated[str, BeforeValidator(lambda value: _check_url(value) if isinstance(value, str) else value)]
"""The address of an image or a file, which the model's server fetches, or a data URL."""


class ImageContent(JsonModel):
    """An image."""

    url: Url = Field(description="an https:// or http:// URL, which the model's server fetches, or a data: URL")
    filename: Text | None = Field(None, description="its name, which OpenAI's own format does not have")
    detail: Detail | None = Field(None, description="how closely OpenAI's models look at it: 'auto', 'low' or 'high'")


class FileContent(JsonModel):
    """A file."""

    file_data: str | None = Field(None, alias="file_data", description="its content, as a data: URL or base64")
    file_url: Url | None = Field(
        None, alias="file_url", description="its https:// or http:// URL, instead of file_data"
    )
    filename: Text | None = Field(None, description="its name")
    file_id: str | None = Field(None, alias="file_id", description="not supported: write file_data or file_url")

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if self.file_id is not None:
            raise FieldError(("file_id",), "names a file on the server of one provider: write file_data or file_url")
        if (self.file_data is None) == (self.file_url is None):
            raise FieldError(("file_data",), "or file_url is needed, and not both")
        try:
            _ = self.data
        except ValueError as error:
            raise FieldError(("file_data",), str(error)) from None
        return self

    @cached_property
    def data(self) -> Data | None:
        """The content, unless it is at a URL. Without a data URL, the name tells the media type."""
        text = self.file_data if self.file_data is not None else self.file_url or ""
        if text.startswith("data:"):
            return _parse_data_url(text)
        if self.file_data is None:
            return None
        guessed, _ = mimetypes.guess_type(self.filename or "")
        return Data(guessed or "application/octet-stream", _decode(text))


def _check_part(type_: object) -> object:
    if type_ == "input_audio":
        raise ValueError("'input_audio' is not supported: write 'text', 'image_url' or 'file'")
    return type_


class ContentPart(JsonModel):
    """A part of a message: a text, an image or a file."""

    type: Annotated[Literal["text", "image_url", "file"], BeforeValidator(_check_part)] = Field(
        description="'text', 'image_url' or 'file'; the field of the same name has the content"
    )
    text: str | None = Field(None, description="a text")
    image_url: ImageContent | None = Field(None, alias="image_url", description="an image")
    file: FileContent | None = Field(None, description="a file")

    @model_validator(mode="after")
    def _has_its_content(self) -> Self:
        for name in ("text", "image_url", "file"):
            if (getattr(self, name) is None) == (name == self.type):
                raise FieldError(
                    (name,), "is missing" if name == self.type else f"can't be in a part of type {self.type}"
                )
        return self

    @property
    def url(self) -> str | None:
        """The address of the image or the file, unless its bytes are here."""
        url = self.image_url.url if self.image_url else self.file.file_url if self.file else None
        return None if url is None or url.startswith("data:") else url

    @property
    def name(self) -> str | None:
        """The name of the image or the file."""
        return self.image_url.filename if self.image_url else self.file.filename if self.file else None

    def as_image(self, detail: Detail | None) -> "ContentPart":
        """A file as an image, which OpenAI's models look at in that detail."""
        assert self.file
        url = self.file.file_url or self.file.file_data or ""
        fields = {"url": url, "filename": self.name, "detail": detail}
        return ContentPart(type="image_url", image_url=ImageContent.model_validate(_set(fields)))

    @cached_property
    def data(self) -> Data | None:
        """The bytes of the image or the file; None if it is at a URL, and for a text."""
        if self.image_url and self.url is None:
            return _parse_data_url(self.image_url.url)
        return self.file.data if self.file else None

    @property
    def media_type(self) -> str | None:
        """The media type; of an image or a file at a URL, the one that its name tells, if it does."""
        if self.data:
            return self.data.media_type
        address = (self.url or "").partition("?")[0].partition("#")[0]
        return mimetypes.guess_type(self.name or "")[0] or mimetypes.guess_type(address)[0]

    @property
    def kind(self) -> AttachmentKind:
        """Whether it is an image or a file, by its media type where the field does not say it."""
        is_image = self.image_url is not None or (self.media_type or "").startswith("image/")
        return "image" if is_image else "file"

    @property
    def shown(self) -> str:
        """The text, or the stand-in for the image or the file."""
        if self.text is not None:
            return self.text
        size = len(self.data.content) if self.data else 0
        return stand_in(self.kind, self.name, self.media_type, size, self.url)


def _set(fields: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in fields.items() if value is not None}


def part_of_bytes(content: bytes, media_type: str, name: str | None = None) -> ContentPart:
    """The part with a file of these bytes. Raises ValidationError for an invalid media type."""
    fields = {"file_data": data_url(Data(media_type, content)), "filename": name}
    return ContentPart(type="file", file=FileContent.model_validate(_set(fields)))


def part_of_url(url: str, name: str | None = None) -> ContentPart:
    """The part with a file at a URL. Raises ValidationError for another URL than one of http, https or data."""
    return ContentPart(type="file", file=FileContent.model_validate(_set({"file_url": url, "filename": name})))


def part_of_file(path: Path, media_type: str | None = None, name: str | None = None) -> ContentPart:
    """The part with a file of this machine, whose name tells the media type if it isn't passed.

    Raises OSError, and ValueError for a file that is too large or whose media type is unknown.
    """
    size = path.stat().st_size
    if size > MAX_ATTACHED:
        raise ValueError(
            f"{path.name} has {size:,} bytes, and {MAX_ATTACHED:,} bytes can be sent with a query: "
            "name a larger file by a URL"
        )
    known = media_type or mimetypes.guess_type(path.name)[0]
    if known is None:
        raise ValueError(f"{path.name}: its media type is unknown: give it a name that ends in .png, .pdf and so on")
    return part_of_bytes(path.read_bytes(), known, name or path.name)


class ChatMessage(JsonModel):
    """A message of a query's input."""

    role: Literal["user", "assistant", "system"] = Field(description="'user', 'assistant' or 'system'")
    content: Annotated[
        Annotated[str, SINGLE] | Annotated[tuple[ContentPart, ...], LIST, Field(min_length=1)], BY_SHAPE
    ] = Field(description="a text, or a list of parts: {type: text}, {type: image_url} and {type: file}")
    name: Text | None = Field(None, description="the name of the speaker")

    @model_validator(mode="after")
    def _attached_by_the_user(self) -> Self:
        if self.attached and self.role != "user":
            raise FieldError(("content",), f"can't have images or files in a message of the {self.role}")
        return self

    @property
    def attached(self) -> tuple[ContentPart, ...]:
        """The images and files, in order."""
        parts = () if isinstance(self.content, str) else self.content
        return tuple(part for part in parts if part.type != "text")

    @property
    def text(self) -> str:
        """The text, in which stand-ins show where the images and files belong."""
        return self.content if isinstance(self.content, str) else "\n".join(part.shown for part in self.content)

    @property
    def attached_bytes(self) -> int:
        """The bytes of the images and files that are not at a URL."""
        return sum(len(part.data.content) for part in self.attached if part.data)
