"""The commands ``run``, ``retry`` and ``chat``, which start runs, follow them to their end and print their results."""

import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from .exit_codes import FAILED, CommandEndError
from .options import Namespace, QueryFormat, QueryOutput, Recursive, RunFiles, RunName, Target
from .terminal import on_one_terminal, print_message, print_result, stderr_console

if TYPE_CHECKING:
    import asyncio

    from ...resources.loader import Loaded
    from ...resources.query import Query, QueryName
    from ..runs.runs import RunHandle
    from ..server.connection import ServerLocation
    from .execute import RunResults

app = typer.Typer()


@app.command()
def run(
    *,
    target: Target = None,
    text: Annotated[str | None, typer.Argument(metavar="[INPUT]", help="The input for the resource.")] = None,
    file: RunFiles = None,
    recursive: Recursive = False,
    namespace: Annotated[
        str | None,
        typer.Option(
            "-n", "--namespace", help="The namespace of manifests that name none; only queries in it are run."
        ),
    ] = None,
    own_id: Annotated[
        str | None, typer.Option("--id", help="The run's id; an open run with this id is joined.")
    ] = None,
    parameter: Annotated[
        list[str] | None, typer.Option("-p", "--parameter", help="A query parameter, as name=value; repeatable.")
    ] = None,
    conversation: Annotated[
        str | None, typer.Option("--conversation", help="The conversation to continue or start.")
    ] = None,
    attach: Annotated[
        list[str] | None,
        typer.Option(
            "--attach", help="An image or a file for the models: its path, or its https:// or http:// URL; repeatable."
        ),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Start the run without following it.")] = False,
    output: QueryOutput = QueryFormat.text,
) -> None:
    """Run the queries in FILE, or send INPUT to a target such as team/NAME, and print the results.

    Without FILE, the workers must have the manifests: from the store (baton apply) or from their own files.
    """
    import asyncio

    from ..server.connection import use_server, uses_remote_server
    from .client import silence_sdk
    from .execute import run_queries
    from .targets import attaching, check_runnable, choose_queries, in_conversation, load_for_runs, read_parameters

    parameters = read_parameters(parameter or ())
    loaded = load_for_runs(file or (), target, namespace, parameters, recursive=recursive)
    chosen = choose_queries(loaded, target, text, namespace, parameters)
    queries = [attaching(in_conversation(query, conversation), attach or ()) for query in chosen]
    check_runnable(loaded, queries, remote=uses_remote_server())
    silence_sdk()
    with use_server(print_message, start=True) as server:
        results = asyncio.run(run_queries(server, loaded, queries, run_id=own_id, detach=detach))
    print_results(results, output, detach=detach)


@app.command()
def retry(
    name: RunName,
    *,
    namespace: Namespace = "default",
    detach: Annotated[bool, typer.Option("--detach", help="Start the run without following it.")] = False,
    output: QueryOutput = QueryFormat.text,
) -> None:
    """Resume a failed run from the failed call, under the same id. Answered calls are not paid for again."""
    import asyncio

    from ..server.connection import use_server
    from .client import silence_sdk
    from .execute import retry_failed

    silence_sdk()
    with use_server(print_message, start=True) as server:
        results = asyncio.run(retry_failed(server, name, namespace, detach=detach))
    print_results(results, output, detach=detach)


def print_results(results: "RunResults", output: QueryFormat, *, detach: bool) -> None:
    """Prints the results of runs, or their ids with ``detach``. Raises CommandEndError if one has not completed."""
    from .execute import ended_well, printed

    text = "\n".join(results.ids) if detach and output is QueryFormat.text else printed(results.queries, output)
    if not (on_one_terminal() and text.strip() == results.last_text.strip()):
        print_result(text)
    if not detach and not all(map(ended_well, results.queries)):
        raise CommandEndError(FAILED)


@app.command()
def chat(
    target: Annotated[
        str, typer.Argument(metavar="KIND/NAME", help="An agent, a team or a model, such as agent/NAME.")
    ],
    *,
    file: RunFiles = None,
    recursive: Recursive = False,
    namespace: Annotated[str | None, typer.Option("-n", "--namespace", help="The namespace of the target.")] = None,
    conversation: Annotated[
        str | None, typer.Option("--conversation", help="The conversation to continue; by default a new one.")
    ] = None,
) -> None:
    """Chat with an agent, a team or a model, line by line. Ctrl-C cancels the current answer."""
    import asyncio
    import secrets

    from ..server.connection import use_server, uses_remote_server
    from .client import silence_sdk
    from .targets import check_runnable, choose_queries, in_conversation, load_for_runs

    loaded = load_for_runs(file or (), target, namespace, recursive=recursive)
    conversation = conversation or f"chat-{secrets.token_hex(4)}"
    first = in_conversation(choose_queries(loaded, target, "?", namespace)[0], conversation)
    check_runnable(loaded, [first], remote=uses_remote_server())  # reports mistakes before the first line
    silence_sdk()
    print_message(f"Conversation {conversation}. Ctrl-C cancels an answer, Ctrl-D ends the chat.", style="dim")
    with use_server(print_message, start=True) as server:
        for line in _lines():
            (query,) = choose_queries(loaded, target, line, namespace)
            asyncio.run(_answer(server, loaded, in_conversation(query, conversation)))
    files = "".join(f"-f {path} " for path in file or ())
    print_message(f"Continue with: baton chat {files}{target} --conversation {conversation}", style="dim")


def _lines() -> Iterator[str]:
    """The lines that the user enters, until the end of the input or Ctrl-C."""
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            if sys.stdin.isatty():
                print_message("")
            if line := input("> " if sys.stdin.isatty() else "").strip():
                yield line


async def _answer(server: "ServerLocation", loaded: "Loaded", query: "Query | QueryName") -> None:
    """Runs a query, and prints its messages and its final status."""
    import asyncio

    from ..console.status import print_status
    from ..console.watch import Watch
    from ..runs.runs import final_status
    from .execute import start_all

    async with _ctrl_c() as interrupts:
        client = await server.connect()
        (handle,) = await start_all(client, server, loaded, [query])
        watch = Watch(client, stderr_console())
        canceling = asyncio.create_task(_cancel_when(interrupts, handle))
        async with watch.live_view():
            await watch.follow(handle)
        status = await final_status(client, handle)
        canceling.cancel()
    if status.phase != "Completed" or status.notices:
        print_status(stderr_console(), handle.id, status)
    if status.said and not (on_one_terminal() and status.said.strip() == watch.last_text.strip()):
        print_result(status.said)


@contextlib.asynccontextmanager
async def _ctrl_c() -> AsyncIterator["asyncio.Queue[None]"]:
    """A context manager in which Ctrl-C puts an item into a queue instead of ending the command."""
    import asyncio

    from ...contracts.settings import on_signal

    interrupts = asyncio.Queue[None]()
    end = on_signal(signal.SIGINT, lambda: interrupts.put_nowait(None))
    try:
        yield interrupts
    finally:
        end()


async def _cancel_when(interrupts: "asyncio.Queue[None]", handle: "RunHandle") -> None:
    """Cancels the run for each item, also for one that came before the run had started."""
    from temporalio.service import RPCError

    while True:
        await interrupts.get()
        with contextlib.suppress(RPCError):  # the run has ended, or Temporal is away: the view says so
            await handle.cancel()
