"""Which images and files the API of a model accepts, as far as that is known without calling it."""

from collections.abc import Iterable
from dataclasses import dataclass

from ...contracts.attachment import Attachment

IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""The media types of images that all APIs accept."""

PDF = "application/pdf"

BEDROCK_DOCUMENTS = {
    PDF: "pdf",
    "text/csv": "csv",
    "text/html": "html",
    "text/markdown": "md",
    "text/plain": "txt",
    "application/msword": "doc",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
}
"""Bedrock's names of the formats of documents, by their media types."""


@dataclass(frozen=True)
class Accepted:
    """What an API accepts: ``files`` are media types besides those of images.

    ``image_urls`` and ``file_urls``: its servers fetch an https URL themselves. ``in_results``: the results of tools
    may have images and files, too. ``max_files``: how many files, without images, a request may have.
    """

    files: frozenset[str]
    image_urls: bool
    file_urls: bool
    in_results: bool
    max_files: int | None = None

    def refusal(self, attachment: Attachment, beside: Iterable[Attachment] = ()) -> str | None:
        """Why the API does not accept an attachment ``beside`` others; None if it may.

        A model may accept less than its API.
        """
        if attachment.kind != "image" and self.max_files is not None:
            files = sum(each.kind != "image" for each in beside)
            if files >= self.max_files:
                return f"it accepts at most {self.max_files} files in one request"
        what = "images" if attachment.kind == "image" else "files"
        if attachment.url and not (self.image_urls if attachment.kind == "image" else self.file_urls):
            return f"it accepts no URLs of {what}: pass the bytes"
        known = IMAGES if attachment.kind == "image" else self.files
        if attachment.url and attachment.media_type is None:  # only its server knows
            return None
        if attachment.media_type not in known:
            return f"it accepts {what} of the types {', '.join(sorted(known))}"
        return None


_OPENAI = Accepted(files=frozenset({PDF}), image_urls=True, file_urls=False, in_results=False)

ACCEPTED = {
    "openai": _OPENAI,
    "azure": _OPENAI,
    "gemini": _OPENAI,
    "openai-responses": Accepted(files=frozenset({PDF}), image_urls=True, file_urls=True, in_results=True),
    "anthropic": Accepted(files=frozenset({PDF, "text/plain"}), image_urls=True, file_urls=True, in_results=True),
    "bedrock": Accepted(
        files=frozenset(BEDROCK_DOCUMENTS), image_urls=False, file_urls=False, in_results=True, max_files=5
    ),
}
"""What is accepted, by the type of a Model."""
