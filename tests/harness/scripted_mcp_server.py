"""An MCP server of 2025-11-25 over HTTP that does what a test wants: leaves unanswered, refuses, takes its time."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from tests.harness.environment import Json

INFO = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "test", "version": "1"}}


@dataclass
class ScriptedMcpServer:
    """A server. ``seen`` has the method of each message, the tool of each call, and HTTP methods without a message.

    What is in ``silent`` is not answered. ``results`` has the result of requests, by their method.
    ``statuses`` has the HTTP status of what is refused.
    """

    silent: set[str] = field(default_factory=set)
    statuses: dict[str, int] = field(default_factory=dict)
    results: dict[str, Callable[[Json], Json]] = field(default_factory=dict)
    seconds: float = 0
    seen: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["ScriptedMcpServer"]:
        """Serves while the block runs."""
        tasks = set[asyncio.Task[None]]()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task
            tasks.add(task)
            with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                while True:
                    await self._answer(reader, writer)
            writer.close()

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        try:
            yield self
        finally:
            server.close()
            for task in tasks:
                task.cancel()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines) if name}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        message: Json = json.loads(body) if body else {"method": first.split()[0]}
        what = message["params"]["name"] if message["method"] == "tools/call" else message["method"]
        self.seen.append(what)
        self.headers.append(headers)
        if what in self.silent:
            await asyncio.Event().wait()
        if message["method"] == "tools/call":
            await asyncio.sleep(self.seconds)
        answer = self._result(message)
        given = json.dumps(answer, separators=(",", ":")).encode() if answer else b""
        status = self.statuses.get(what, 200 if answer else {"GET": 405, "DELETE": 200}.get(what, 202))
        session = "mcp-session-id: one\r\n" if what == "initialize" else ""
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(given)}\r\n{session}\r\n"
        writer.write(head.encode() + given)
        await writer.drain()

    def _result(self, message: Json) -> Json | None:
        if "id" not in message:
            return None
        answer: Json = {"jsonrpc": "2.0", "id": message["id"]}
        if result_of := self.results.get(message["method"]):
            return {**answer, "result": result_of(message)}
        if message["method"] == "initialize":
            return {**answer, "result": INFO}
        if message["method"] == "tools/call":
            return {**answer, "result": {"content": [{"type": "text", "text": "done"}]}}
        return {**answer, "error": {"code": -32601, "message": "there is no such method"}}
