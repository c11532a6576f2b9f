"""A real MCP server, made with the official SDK, as a process: for each era of the protocol and each transport."""

import asyncio
import os
import sys
from pathlib import Path

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import (
    BlobResourceContents,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    EmbeddedResource,
    ImageContent,
    InputRequiredResult,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.harness.mcp_questions import add_questions

SAFE = ToolAnnotations(read_only_hint=True)
VERSION = b"mcp-protocol-version"


def make_server(folder: Path) -> MCPServer:  # noqa: C901  # one function for each tool
    """The server. ``calls`` in ``folder`` has a line for each call of a tool that changes something."""
    server = MCPServer("test")

    @server.tool(annotations=SAFE)
    def echo(message: str) -> str:
        """Gives the message back."""
        return message

    @server.tool(annotations=SAFE)
    def add_up(a: int, b: int) -> dict[str, int]:
        """Adds two numbers."""
        return {"sum": a + b}

    @server.tool()
    async def note(words: str, seconds: float = 0) -> str:
        """Writes a note, and then takes some seconds."""
        with (folder / "calls").open("a") as calls:
            calls.write(f"{words}\n")
        await asyncio.sleep(seconds)
        return f"noted {words}"

    @server.tool(annotations=ToolAnnotations(destructive_hint=True))
    def wipe(disk: str) -> str:
        """Destroys what a disk holds."""
        with (folder / "calls").open("a") as calls:
            calls.write(f"wiped {disk}\n")
        return f"{disk} is empty"

    @server.tool(annotations=SAFE)
    async def work(steps: int, ctx: Context, seconds: float = 0.2) -> str:
        """Works in steps and reports each."""
        (folder / "working").touch()
        try:
            for step in range(steps):
                await ctx.report_progress(step + 1, steps, f"step {step + 1} is done")
                await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            (folder / "canceled").touch()
            raise
        return "all done"

    @server.tool(annotations=SAFE)
    def process() -> str:
        """The process id of the server."""
        return str(os.getpid())

    @server.tool(annotations=SAFE)
    def header(name: str, ctx: Context) -> str:
        """A header of the request, or an environment variable."""
        return str((ctx.headers or os.environ).get(name))

    @server.tool(annotations=SAFE)
    def meta(name: str, ctx: Context) -> str:
        """What the request's ``_meta`` has under a name."""
        return str(dict(ctx.request_context.meta or {}).get(name))

    @server.tool(annotations=SAFE)
    def pieces() -> CallToolResult:
        """Content of every kind."""
        return CallToolResult(
            content=[
                TextContent(text="Look:"),
                ImageContent(data="aGVsbG8=", mime_type="image/png"),
                ResourceLink(name="plan", uri="file:///plan.txt", mime_type="text/plain"),
                EmbeddedResource(resource=TextResourceContents(uri="note://1", text="a note")),
                EmbeddedResource(resource=BlobResourceContents(uri="note://2", blob="aGVsbG8=")),
            ],
            structured_content={"found": 5},
        )

    @server.tool(annotations=SAFE)
    def wrong() -> CallToolResult:
        """Says that it failed."""
        return CallToolResult(content=[TextContent(text="there is no such town")], is_error=True)

    @server.tool(annotations=SAFE)
    def much(size: int) -> str:
        """A long text."""
        return "x" * size

    @server.tool()
    async def ask() -> str | InputRequiredResult:
        """Asks a person."""
        schema = {"type": "object", "properties": {"yes": {"type": "boolean"}}}
        params = ElicitRequestFormParams(message="Shall I?", requested_schema=schema)
        return InputRequiredResult(input_requests={"sure": ElicitRequest(params=params)})

    add_questions(server, folder)
    return server


class OlderEra:
    """A server that has never heard of the protocol of 2026-07-28: it takes its requests for those of a session."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = [header for header in scope["headers"] if header[0] != VERSION or header[1] < b"2026"]
            scope = {**scope, "headers": headers}
        await self._app(scope, receive, send)


class _Guarded:
    """A server that takes only the token that the file ``token`` in a folder has, if there is one.

    It refuses another one once there is no file ``held``.
    """

    def __init__(self, app: ASGIApp, folder: Path) -> None:
        self._app, self._token, self._refused, self._held = app, folder / "token", folder / "refused", folder / "held"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope.get("headers", ())).get(b"authorization")
        if scope["type"] == "http" and self._token.exists() and given != f"Bearer {self._token.read_text()}".encode():
            self._refused.touch()
            while self._held.exists():
                await asyncio.sleep(0.02)
            await PlainTextResponse("no such token", 401)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


async def _main(era: str, folder: Path, port: int) -> None:
    server = make_server(folder)
    if era == "stdio":
        print("this line is no message", flush=True)
        print("the server has started", file=sys.stderr, flush=True)
        await server.run_stdio_async()
        return
    import uvicorn  # noqa: PLC0415  # not for stdio

    app: ASGIApp = server.sse_app() if era == "sse" else server.streamable_http_app()
    app = _Guarded(OlderEra(app) if era == "2025" else app, folder)
    config = uvicorn.Config(app, port=port, log_level="critical")
    config.timeout_graceful_shutdown = 1
    await uvicorn.Server(config).serve()


def serve(era: str, folder: Path, port: int) -> None:
    """Serves until the process is killed."""
    asyncio.run(_main(era, folder, port))


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
