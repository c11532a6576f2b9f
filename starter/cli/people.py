"""Commands for people who decide: inbox, approvals, approve, reject, reply."""

import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ..account import client_identity
from ..errors import UsageError
from .options import Namespace, Output, OutputFormat, RunName
from .terminal import print_message, print_result

if TYPE_CHECKING:
    from pydantic import JsonValue
    from temporalio.client import Client

    from ...contracts.decisions import DecisionKind, PendingDecision
    from ..runs.runs import RunHandle

Pending = tuple[str, "PendingDecision"]
"""What waits, after the id of the run that a client has started."""

OptionalRun = Annotated[str | None, typer.Argument(metavar="[NAME|ID]", help="A run; by default all runs.")]
OptionalNamespace = Annotated[
    str | None,
    typer.Option("-n", "--namespace", help="The namespace of the Query; without a run, only runs of its Queries."),
]
Person = Annotated[str | None, typer.Option("--as", help="Your name; by default your account and host.")]


def list_pending(
    kinds: "Sequence[DecisionKind]",
    name: str | None,
    namespace: str | None,
    output: OutputFormat,
    show: Callable[[Sequence[Pending]], None],
) -> None:
    """Prints what waits in a run and the runs below it, or in all runs; as text by ``show``.

    Of all runs, those that can't be asked are named on stderr.
    """
    from ..runs.decisions import PendingInRuns, all_pending_decisions, pending_decisions
    from .client import with_client, with_run
    from .formats import dump

    async def of_run(client: "Client", handle: "RunHandle") -> PendingInRuns:
        waiting = await pending_decisions(client, handle.id, handle.run_id)
        return PendingInRuns([(handle.id, each) for each in waiting], {})

    if name:
        asked = with_run(name, namespace or "default", of_run)
    else:
        asked = with_client(lambda client: all_pending_decisions(client, namespace))
    for run, why in asked.unanswered.items():
        print_message(f"note: {run} can't be asked what it waits for: {why}")
    found = [(run, each) for run, each in asked.decisions if each.kind in kinds]
    if output is OutputFormat.text:
        show(found)
    else:
        values: list[JsonValue] = [{"root": run, **each.model_dump(mode="json")} for run, each in found]
        print_result(dump(values, output))


if TYPE_CHECKING:
    from collections.abc import Sequence

    from temporalio.client import Client

    from ...contracts.decisions import PendingDecision
    from ...resources.base import JsonObject
    from ..runs.runs import RunHandle

app = typer.Typer()

Call = Annotated[str, typer.Argument(metavar="CALL", help="The id of the call, from 'baton approvals'.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; the model is told why a call was rejected.")]
Remember = Annotated[bool, typer.Option("--remember", help="Also for all later calls of this tool in the run.")]


@app.command()
def approvals(
    name: OptionalRun = None, namespace: OptionalNamespace = None, output: Output = OutputFormat.text
) -> None:
    """Lists the tool calls that wait for a person's yes, in a run and the runs below it, or in all runs."""
    list_pending(("approval", "budget"), name, namespace, output, _show)


@app.command()
def approve(
    name: RunName,
    call: Call,
    arguments: Annotated[str | None, typer.Option("--arguments", help="Other arguments for it, as JSON.")] = None,
    reason: Reason = "",
    remember: Remember = False,
    person: Person = None,
    namespace: Namespace = "default",
) -> None:
    """Lets a tool call be carried out that waits for a yes, with its own or with other arguments."""
    _decide(
        name,
        namespace,
        {"call": call, "arguments": _read_arguments(arguments), **_common(reason, person, remember=remember)},
    )


@app.command()
def reject(
    name: RunName,
    call: Call,
    reason: Reason = "",
    remember: Remember = False,
    person: Person = None,
    namespace: Namespace = "default",
) -> None:
    """Rejects a tool call that waits for a yes; the model is told the reason."""
    _decide(name, namespace, {"call": call, "approved": False, **_common(reason, person, remember=remember)})


def _common(reason: str, person: str | None, *, remember: bool) -> "JsonObject":
    return {"reason": reason, "remember": remember, "by": person or client_identity()}


def _read_arguments(text: str | None) -> "JsonObject | None":
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--arguments: is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError("--arguments: must be a JSON object")
    return value


def _show(found: "Sequence[Pending]") -> None:
    from rich.console import Console

    from ..console.status import print_table
    from ..runs.decisions import COLUMNS

    rows = [_row(run, each) for run, each in found]
    print_table(Console(highlight=False), COLUMNS, rows, "no call waits for a person")


def _row(run: str, asked: "PendingDecision") -> tuple[str, ...]:
    until = f"{asked.until.astimezone():%Y-%m-%d %H:%M:%S}" if asked.until else "-"
    return run, asked.id, asked.speaker, until, asked.tool or "", asked.arguments or ""


def _decide(name: str, namespace: str, given: "JsonObject") -> None:
    from ...contracts.decisions import ApproveRequest
    from ..runs.decisions import NotDecided, decide
    from .client import with_run

    request = ApproveRequest.model_validate(given)

    async def send(client: "Client", handle: "RunHandle") -> None:
        try:
            decision = await decide(client, handle, request)
        except NotDecided as error:
            raise UsageError(str(error)) from None
        print_message(f"{request.call} is {'approved' if decision.approved else 'rejected'}")

    with_run(name, namespace, send)


if TYPE_CHECKING:
    from collections.abc import Sequence

    from temporalio.client import Client

    from ..runs.runs import RunHandle


@app.command()
def inbox(name: OptionalRun = None, namespace: OptionalNamespace = None, output: Output = OutputFormat.text) -> None:
    """Lists what people are asked, in a run and the runs below it, or in all runs."""
    list_pending(("question",), name, namespace, output, _show_inbox)


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
    from ...contracts.decisions import ReplyRequest
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


def _show_inbox(found: "Sequence[Pending]") -> None:
    """Prints each question below a line that says who is asked, where, and until when."""
    from rich.console import Console
    from rich.text import Text

    from ..text import escape_control_characters

    console = Console(highlight=False)
    for run, asked in found:
        until = f" until {asked.until.astimezone():%Y-%m-%d %H:%M:%S}" if asked.until else ""
        line = escape_control_characters(f"{run} {asked.id}  {asked.speaker}{until}")
        console.print(Text(line, style="bold"), soft_wrap=True)
        for line in (asked.question or "").splitlines():
            console.print(Text(f"  {escape_control_characters(line)}"), soft_wrap=True)
    if not found:
        console.print("nobody is asked anything")
