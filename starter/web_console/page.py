"""Serves the console: one document and its assets. They hold no data, which the page reads over ``/runs`` and so on.

So the page needs no key, and what it shows needs the caller's. A policy forbids all scripts and styles but its own.
"""

import gzip
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..diagram.svg import style_sheet

STATIC = Path(__file__).parent / "static"
"""The folder with the page's files."""

DOCUMENT = "index.html"

PREFIX = "/assets/"
"""The paths of all files but the document."""

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
"""The media types of the files that are served, by their suffixes. No other files are."""

POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
"""The Content-Security-Policy of the page: nothing is loaded from elsewhere, and no script or style is inline."""

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "cache-control": "no-cache",  # a browser asks each time whether it has this release's files
    "vary": "Accept-Encoding",
}


@dataclass(frozen=True)
class Asset:
    """A file of the page, as it is sent."""

    content: bytes
    compressed: bytes
    media_type: str
    etag: str

    @classmethod
    def of(cls, content: bytes, suffix: str) -> "Asset":
        """A file with this content."""
        digest = hashlib.sha256(content).hexdigest()[:32]
        return cls(
            content=content,
            compressed=gzip.compress(content, mtime=0),
            media_type=MEDIA_TYPES[suffix],
            etag=f'"{digest}"',
        )

    def response(self, request: Request) -> Response:
        """The response with the file, or 304 if the client has it."""
        headers = {**HEADERS, "etag": self.etag}
        known = request.headers.get("if-none-match", "")
        if self.etag in (tag.strip().removeprefix("W/") for tag in known.split(",")):
            return Response(status_code=304, headers=headers)
        encodings = {part.partition(";")[0].strip() for part in request.headers.get("accept-encoding", "").split(",")}
        if "gzip" in encodings:
            headers["content-encoding"] = "gzip"
            return Response(self.compressed, media_type=self.media_type, headers=headers)
        return Response(self.content, media_type=self.media_type, headers=headers)


@cache
def assets() -> dict[str, Asset]:
    """All files of the page, by their paths below STATIC, and the style sheet of drawings."""
    files = (path for path in sorted(STATIC.rglob("*")) if path.suffix in MEDIA_TYPES)
    read = {path.relative_to(STATIC).as_posix(): Asset.of(path.read_bytes(), path.suffix) for path in files}
    return {**read, "graph.css": Asset.of(style_sheet().encode(), ".css")}


async def _document(request: Request) -> Response:
    return assets()[DOCUMENT].response(request)


async def _asset(request: Request) -> Response:
    asset = assets().get(request.path_params["path"])
    if asset is None:
        raise HTTPException(404, "the console has no such file")
    return asset.response(request)


def routes() -> Sequence[Route]:
    """The routes of the page."""
    return [Route("/", _document), Route(f"{PREFIX}{{path:path}}", _asset)]
