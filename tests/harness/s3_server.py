"""A server that stores objects like S3, over HTTP: PUT, HEAD and GET. The bucket ``closed`` refuses all of them."""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


class S3Server:
    """The server. ``objects`` are by path, with the bucket's name first."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.app = Starlette(routes=[Route("/{path:path}", self._serve, methods=["PUT", "HEAD", "GET"])])

    async def _serve(self, request: Request) -> Response:
        path = request.path_params["path"]
        if path.startswith("closed/"):
            return Response("<Error><Code>AccessDenied</Code></Error>", 403)
        if request.method == "PUT":
            self.objects[path] = await request.body()
        exists = path in self.objects
        content = self.objects[path] if exists and request.method == "GET" else b""
        return Response(content, 200 if exists else 404, {"ETag": '"etag"'})
