"""The command ``chat``: each line is a query to one target, and all of them are one conversation."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Recursive, RunFiles
from .terminal import on_one_terminal, print_message, print_result, stderr_console

if TYPE_CHECKING:
    from ...resources.loader import Loaded
    from ...resources.query import Query, QueryName
    from ..runs.run_handle import RunHandle
    from ..server.connection import ServerLocation

app = typer.Typer()


@app.command()
def chat(
    target: Annotated[str, typer.Argument(metavar="KIND/NAME", help="Whom to talk to, such as agent/NAME.")],
    *,
    file: RunFiles = None,
    recursive: Recursive = False,
    namespace: Annotated[str | None, typer.Option("-n", "--namespace", help="The namespace of the target.")] = None,
    conversation: Annotated[
        str | None, typer.Option("--conversation", help="Go on with this conversation; by default a new one.")
    ] = None,
) -> None:
    """Asks a target line by line, each time with all that was said before. Ctrl-C ends the current answer."""
    import asyncio
    import secrets

    from ..server.connection import use_server, uses_remote_server
    from .client import silence_sdk
    from .targets import choose_queries, in_conversation, load_manifests, refuse_secrets_of_stdin

    loaded = load_manifests(file, recursive=recursive) if file else None
    talk = conversation or f"chat-{secrets.token_hex(4)}"
    in_conversation(choose_queries(loaded, target, "?", namespace)[0], talk)
    if loaded and not uses_remote_server():
        refuse_secrets_of_stdin(loaded)
    silence_sdk()
    print_message(f"conversation {talk}; Ctrl-C ends an answer, Ctrl-D the chat", style="dim")
    with use_server(print_message, start=True) as server:
        for line in _lines():
            (query,) = choose_queries(loaded, target, line, namespace)
            asyncio.run(_answer(server, loaded, in_conversation(query, talk)))
    files = "".join(f"-f {each} " for each in file or ())
    print_message(f"go on with: baton chat {files}{target} --conversation {talk}", style="dim")


def _lines() -> Iterator[str]:
    """The lines that a person writes, until the end of the input or Ctrl-C."""
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            if sys.stdin.isatty():
                print_message("")
            if line := input("> " if sys.stdin.isatty() else "").strip():
                yield line


async def _answer(server: "ServerLocation", loaded: "Loaded | None", query: "Query | QueryName") -> None:
    """Runs a query, and prints what is said and how it ended."""
    from ..console.status import print_status
    from ..console.watch import Watch
    from ..history.follow import follow
    from ..runs.run_status import final_status
    from .execute import start_all

    client = await server.connect()
    (handle,) = await start_all(client, server, loaded, [query])
    watch = Watch(client, stderr_console())
    with _canceled_by_ctrl_c(handle):
        async with watch.live_view():
            await follow(client, handle, watch.on_event)
        status = await final_status(handle)
    if status.phase != "Completed" or status.notices:
        print_status(stderr_console(), handle.id, status)
    if status.message and not (on_one_terminal() and status.message.strip() == watch.last_text.strip()):
        print_result(status.message)


@contextlib.contextmanager
def _canceled_by_ctrl_c(handle: "RunHandle") -> Iterator[None]:
    """While the block runs, Ctrl-C cancels the run, and not the command."""
    import asyncio

    loop, requests = asyncio.get_running_loop(), set[asyncio.Task[None]]()
    loop.add_signal_handler(signal.SIGINT, lambda: requests.add(asyncio.create_task(handle.cancel())))
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
