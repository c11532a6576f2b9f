"""The command ``run``: starts queries, follows them to their end, and prints their results."""

from typing import Annotated

import typer

from .exit_codes import FAILED, CommandEndError
from .options import QueryFormat, QueryOutput, Recursive, RunFiles, Target
from .terminal import on_one_terminal, print_message, print_result

app = typer.Typer()


@app.command()
def run(
    *,
    target: Target = None,
    text: Annotated[str | None, typer.Argument(metavar="[INPUT]", help="The input for it.")] = None,
    file: RunFiles = None,
    recursive: Recursive = False,
    namespace: Annotated[str | None, typer.Option("-n", "--namespace", help="Run only this namespace.")] = None,
    own_id: Annotated[str | None, typer.Option("--id", help="The run's id; an open run of this id is joined.")] = None,
    parameter: Annotated[
        list[str] | None, typer.Option("-p", "--parameter", help="A query parameter, as name=value; may be repeated.")
    ] = None,
    conversation: Annotated[
        str | None, typer.Option("--conversation", help="Go on with this conversation, or begin it.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Start only; don't follow.")] = False,
    output: QueryOutput = QueryFormat.text,
) -> None:
    """Runs the queries in FILE, or gives INPUT to a target such as team/NAME, and prints the results.

    Without FILE, the workers must know what is named: from the store (baton apply), or from their own files.
    """
    import asyncio

    from ..server.connection import use_server, uses_remote_server
    from .client import silence_sdk
    from .execute import ended_well, printed, run_queries
    from .store import look_into_store
    from .targets import check_runnable, choose_queries, in_conversation, load_manifests, read_parameters

    parameters = read_parameters(parameter or ())
    loaded = look_into_store(load_manifests(file, parameters, recursive=recursive)) if file else None
    chosen = choose_queries(loaded, target, text, namespace, parameters)
    queries = [in_conversation(each, conversation) for each in chosen]
    if loaded:
        check_runnable(loaded, queries, remote=uses_remote_server())
    silence_sdk()
    with use_server(print_message, start=True) as server:
        results = asyncio.run(run_queries(server, loaded, queries, run_id=own_id, detach=detach))
    text = printed(results.queries, output)
    if not (on_one_terminal() and text.strip() == results.last_text.strip()):
        print_result(text)
    if not detach and not all(map(ended_well, results.queries)):
        raise CommandEndError(FAILED)
