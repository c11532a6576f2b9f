"""The commands ``chat`` and ``sessions``: conversations of several queries."""

import contextlib
import json
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError
from .options import Output, OutputFormat, Recursive, RunFiles
from .terminal import on_one_terminal, print_message, print_result, print_rows, stderr_console

if TYPE_CHECKING:
    from ...resources.loader import Loaded
    from ...resources.query import Query, QueryName
    from ..runs.runs import RunHandle
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
    from ..runs.runs import final_status
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


if TYPE_CHECKING:
    from pydantic import JsonValue

    from ...resources.base import JsonObject


sessions = typer.Typer(no_args_is_help=True, help="Conversations that queries go on with: list, show, delete.")
app.add_typer(sessions, name="sessions")

Conversation = Annotated[str, typer.Argument(metavar="CONVERSATION", help="The conversation's id.")]
Namespace = Annotated[str, typer.Option("-n", "--namespace", help="The namespace of its queries or its Memory.")]
MemoryName = Annotated[str, typer.Option("--memory", help="The Memory that its queries name.")]

COLUMNS = ("CONVERSATION", "NAMESPACE", "MEMORY", "MESSAGES", "LAST USED")


@sessions.command("list")
def list_sessions(
    limit: Annotated[int, typer.Option("--limit", min=1, help="The number of conversations.")] = 20,
    output: Output = OutputFormat.text,
) -> None:
    """Lists the conversations that were used last. Reads the journal, as a worker does."""
    import asyncio
    from datetime import UTC, datetime

    from ...contracts.status import format_time
    from ..operations.conversations import list_conversations
    from ..text import format_age

    rows: list[tuple[tuple[str, ...], JsonValue]] = []
    for each in asyncio.run(list_conversations(limit)):
        created, changed = (datetime.fromtimestamp(seconds, UTC) for seconds in (each.created, each.changed))
        named: JsonObject = {"id": each.id, "namespace": each.namespace, "memory": each.memory, "messages": each.depth}
        times: JsonObject = {"created": format_time(created), "lastUsed": format_time(changed)}
        cells = (each.id, each.namespace, each.memory, str(each.depth), format_age(changed))
        rows.append((cells, {**named, **times}))
    print_rows(COLUMNS, rows, output, "there is no conversation")


@sessions.command()
def show(
    conversation: Conversation,
    namespace: Namespace = "default",
    memory: MemoryName = "",
    limit: Annotated[int, typer.Option("--limit", min=1, help="The number of messages, from the last one back.")] = 50,
    output: Output = OutputFormat.text,
) -> None:
    """Prints the last messages of a conversation."""
    import asyncio

    from ...contracts.plan import ConversationPlan
    from ..operations.conversations import read_conversation
    from .formats import dump

    plan = ConversationPlan(id=conversation, namespace=namespace, memory=memory)
    found = asyncio.run(read_conversation(plan, limit))
    if found is None:
        raise UsageError(_unknown(conversation))
    if output is OutputFormat.text:
        print_result("\n\n".join(f"{each.name or each.role}: {each.content}" for each in found if each.content))
    else:
        print_result(dump([json.loads(each.model_dump_json(exclude_none=True)) for each in found], output))


@sessions.command()
def delete(conversation: Conversation, namespace: Namespace = "default", memory: MemoryName = "") -> None:
    """Deletes a conversation; its messages are deleted by the next ``baton prune`` after the runs' retention."""
    import asyncio

    from ...contracts.plan import ConversationPlan
    from ..operations.conversations import delete_conversation

    plan = ConversationPlan(id=conversation, namespace=namespace, memory=memory)
    if not asyncio.run(delete_conversation(plan)):
        raise UsageError(_unknown(conversation))
    print_message(f"conversation {conversation} is deleted; 'baton prune' deletes its messages")


def _unknown(conversation: str) -> str:
    return f"there is no conversation '{conversation}' in the journal: list them with baton sessions list"
