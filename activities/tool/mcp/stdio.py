"""An MCP server that is a process of the worker's machine: it reads requests from stdin and answers on stdout."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
from anyio.abc import ByteReceiveStream, ObjectReceiveStream, ObjectSendStream, Process
from anyio.streams.buffered import BufferedByteReceiveStream
from mcp.client.stdio import get_default_environment
from mcp.os.posix.utilities import terminate_posix_process_tree
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from pydantic import ValidationError

from .endpoint import McpEndpoint
from .http_client import MAX_ANSWER, MAX_OBJECTS, count_objects

GRACE = 2.0
"""Seconds that the process has to end by itself after its stdin was closed, and again after SIGTERM."""

KEPT_ERRORS = 2_000
"""Characters of the end of its stderr that are kept: an error quotes them."""

Streams = tuple[ObjectReceiveStream[SessionMessage | Exception], ObjectSendStream[SessionMessage]]

_GONE = (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)


class StdioServer:
    """One process. ``failure`` says why it can no longer be used.

    The SDK's own transport is not used: it keeps a line of any length, and lets the process write into our log.
    """

    def __init__(self, endpoint: McpEndpoint) -> None:
        self._endpoint = endpoint
        self._errors = self._why = ""
        self._process: Process | None = None

    @property
    def is_running(self) -> bool:
        """Whether the process reads and answers, as far as is known."""
        return bool(self._process and self._process.returncode is None and not self._why)

    @property
    def failure(self) -> str:
        """Why it has ended, with the end of what it wrote to stderr."""
        code = self._process.returncode if self._process else None
        ended = self._why or ("has ended" if code is None else f"has ended with the code {code}")
        return f"{ended}: {' '.join(self._errors.split())}".rstrip(": ")

    @asynccontextmanager
    async def transport(self) -> AsyncIterator[Streams]:
        """Runs the process while the block runs, and gives the streams of its messages. Raises OSError."""
        env = get_default_environment() | dict(self._endpoint.env)
        command = self._endpoint.command
        process = self._process = await anyio.open_process(command, env=env, start_new_session=True)
        assert process.stdin and process.stdout and process.stderr
        read, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, written = anyio.create_memory_object_stream[SessionMessage](0)
        async with anyio.create_task_group() as group:
            group.start_soon(self._read, process.stdout, read)
            group.start_soon(self._write, process, written)
            group.start_soon(self._keep_errors, process.stderr)
            try:
                yield incoming, outgoing
            finally:
                with anyio.CancelScope(shield=True):
                    await _stop(process)
                group.cancel_scope.cancel()
        await process.aclose()

    async def _read(self, stdout: ByteReceiveStream, read: ObjectSendStream[SessionMessage | Exception]) -> None:
        lines = BufferedByteReceiveStream(stdout)
        with suppress(*_GONE, anyio.IncompleteRead):
            async with read:
                while True:
                    try:
                        line = await lines.receive_until(b"\n", MAX_ANSWER)
                    except anyio.DelimiterNotFound:
                        self._why = f"gave an answer of more than {MAX_ANSWER:,} bytes"
                        return
                    if count_objects(line) > MAX_OBJECTS:
                        self._why = f"gave an answer of more than {MAX_OBJECTS:,} objects"
                        return
                    with suppress(ValidationError):  # what is no message, such as a line of a log, is passed over
                        await read.send(SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False)))

    async def _write(self, process: Process, written: ObjectReceiveStream[SessionMessage]) -> None:
        assert process.stdin
        with suppress(*_GONE):
            async with written:
                async for each in written:
                    await process.stdin.send(
                        each.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
                    )

    async def _keep_errors(self, stderr: ByteReceiveStream) -> None:
        with suppress(*_GONE):
            async for chunk in stderr:
                self._errors = (self._errors + chunk.decode(errors="replace"))[-KEPT_ERRORS:]


async def _stop(process: Process) -> None:
    """Closes stdin; if the process does not end by itself, it and its children are terminated."""
    assert process.stdin
    with suppress(*_GONE):
        await process.stdin.aclose()
    with anyio.move_on_after(GRACE):
        while process.returncode is None:
            await anyio.sleep(0.01)
    if process.returncode is None:
        await terminate_posix_process_tree(process, GRACE)
