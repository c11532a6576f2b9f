"""Commands for people who are members of teams: inbox, reply."""

from typing import TYPE_CHECKING, Annotated

import typer

from ..account import client_identity
from ..errors import UsageError
from .options import Namespace, Output, OutputFormat, RunName
from .terminal import print_message, print_result

if TYPE_CHECKING:
    from pydantic import JsonValue
    from temporalio.client import Client

    from ...conversation.contracts.decisions import PendingDecision
    from ..runs.run_handle import RunHandle

app = typer.Typer()


@app.command()
def inbox(
    name: Annotated[str | None, typer.Argument(metavar="[NAME|ID]", help="A run; by default all runs.")] = None,
    namespace: Namespace = "default",
    output: Output = OutputFormat.text,
) -> None:
    """Lists what people are asked, in a run and the runs below it, or in all runs."""
    from ..runs.decisions import all_pending_decisions, pending_decisions
    from .client import with_client, with_run
    from .formats import dump

    async def of_run(client: "Client", handle: "RunHandle") -> "list[tuple[str, PendingDecision]]":
        return [(handle.id, each) for each in await pending_decisions(client, handle.id)]

    found = with_run(name, namespace, of_run) if name else with_client(all_pending_decisions)
    found = [(run, each) for run, each in found if each.kind == "question"]
    if output is OutputFormat.text:
        _print(found)
    else:
        values: list[JsonValue] = [{"root": run, **each.model_dump(mode="json")} for run, each in found]
        print_result(dump(values, output))


@app.command()
def reply(
    name: RunName,
    text: Annotated[str, typer.Argument(help="The reply.")],
    to: Annotated[str | None, typer.Option("--to", help="The id of the question, where several wait.")] = None,
    person: Annotated[str | None, typer.Option("--as", help="Your name; by default your account and host.")] = None,
    namespace: Namespace = "default",
) -> None:
    """Replies to what a person is asked in a run; the reply joins its conversation."""
    from ...conversation.contracts.replies import ReplyRequest
    from ..runs.decisions import NotDecided
    from ..runs.decisions import reply as send_reply
    from .client import with_run

    request = ReplyRequest(text=text, to=to, by=person or client_identity())

    async def send(client: "Client", handle: "RunHandle") -> None:
        try:
            await send_reply(client, handle, request)
        except NotDecided as error:
            raise UsageError(str(error)) from None
        print_message("the reply has joined the conversation")

    with_run(name, namespace, send)


def _print(found: "list[tuple[str, PendingDecision]]") -> None:
    """Prints each question below a line that says who is asked, where, and until when."""
    from rich.console import Console
    from rich.text import Text

    from ..text.escape import escape_control_characters

    console = Console(highlight=False)
    for run, asked in found:
        until = f" until {asked.until.astimezone():%Y-%m-%d %H:%M:%S}" if asked.until else ""
        console.print(Text(f"{run} {asked.id}  {asked.speaker}{until}", style="bold"), soft_wrap=True)
        for line in (asked.question or "").splitlines():
            console.print(Text(f"  {escape_control_characters(line)}"), soft_wrap=True)
    if not found:
        console.print("nobody is asked anything")
