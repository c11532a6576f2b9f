"""Commands for people who are members of teams: inbox, reply."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ..account import client_identity
from ..errors import UsageError
from .options import Namespace, Output, OutputFormat, RunName
from .pending import OptionalNamespace, OptionalRun, Pending, Person, list_pending
from .terminal import print_message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from temporalio.client import Client

    from ..runs.run_handle import RunHandle

app = typer.Typer()


@app.command()
def inbox(name: OptionalRun = None, namespace: OptionalNamespace = None, output: Output = OutputFormat.text) -> None:
    """Lists what people are asked, in a run and the runs below it, or in all runs."""
    list_pending(("question",), name, namespace, output, _show)


@app.command()
def reply(
    name: RunName,
    text: Annotated[str | None, typer.Argument(help="The reply; '-' reads it from stdin.")] = None,
    decline: Annotated[bool, typer.Option("--decline", help="Decline what a server asks; TEXT may say why.")] = False,
    to: Annotated[str | None, typer.Option("--to", help="The id of the question, where several wait.")] = None,
    person: Person = None,
    namespace: Namespace = "default",
) -> None:
    """Replies to what a person is asked in a run, as a member of a team or by a server."""
    from ...conversation.contracts.replies import ReplyRequest
    from ..runs.decisions import NotDecided
    from ..runs.decisions import reply as send_reply
    from .client import with_run

    if text is None and not decline:
        raise UsageError("say the reply: TEXT, or '-' to read it from stdin")
    request = ReplyRequest(text=_read(text), to=to, by=person or client_identity(), declines=decline)

    async def send(client: "Client", handle: "RunHandle") -> None:
        try:
            await send_reply(client, handle, request)
        except NotDecided as error:
            raise UsageError(str(error)) from None
        print_message("the question is declined" if decline else "the reply is given")

    with_run(name, namespace, send)


def _read(text: str | None) -> str:
    """The reply, perhaps from stdin."""
    try:
        return sys.stdin.read() if text == "-" else text or ""
    except UnicodeDecodeError as error:
        raise UsageError(f"the reply can't be read: {error}") from None


def _show(found: "Sequence[Pending]") -> None:
    """Prints each question below a line that says who is asked, where, and until when."""
    from rich.console import Console
    from rich.text import Text

    from ..text.escape import escape_control_characters

    console = Console(highlight=False)
    for run, asked in found:
        until = f" until {asked.until.astimezone():%Y-%m-%d %H:%M:%S}" if asked.until else ""
        line = escape_control_characters(f"{run} {asked.id}  {asked.speaker}{until}")
        console.print(Text(line, style="bold"), soft_wrap=True)
        for line in (asked.question or "").splitlines():
            console.print(Text(f"  {escape_control_characters(line)}"), soft_wrap=True)
    if not found:
        console.print("nobody is asked anything")
