"""A server that stores objects like S3: PUT, HEAD, GET, lists, deletions. The bucket ``closed`` refuses all of them."""

import re
from xml.sax.saxutils import escape

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


class S3Server:
    """The server. ``objects`` are by path, with the bucket's name first."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.app = Starlette(routes=[Route("/{path:path}", self._serve, methods=["PUT", "HEAD", "GET", "POST"])])

    async def _serve(self, request: Request) -> Response:
        path = request.path_params["path"]
        if path.startswith("closed/"):
            return Response("<Error><Code>AccessDenied</Code></Error>", 403)
        if "list-type" in request.query_params or "prefix" in request.query_params:
            return self._list(path.rstrip("/"), request.query_params["prefix"])
        if request.method == "POST":
            for key in re.findall("<Key>(.*?)</Key>", (await request.body()).decode()):
                del self.objects[f"{path.rstrip('/')}/{key}"]
            return Response("<DeleteResult/>", media_type="application/xml")
        if request.method == "PUT":
            self.objects[path] = await request.body()
        exists = path in self.objects
        content = self.objects[path] if exists and request.method == "GET" else b""
        return Response(content, 200 if exists else 404, {"ETag": '"etag"'})

    def _list(self, bucket: str, prefix: str) -> Response:
        """The objects of a bucket whose keys begin so: https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjects.html."""
        keys = [path.partition("/")[2] for path in sorted(self.objects) if path.startswith(f"{bucket}/{prefix}")]
        listed = "".join(f"<Contents><Key>{escape(key)}</Key><Size>1</Size></Contents>" for key in keys)
        return Response(f"<ListBucketResult>{listed}</ListBucketResult>", media_type="application/xml")
