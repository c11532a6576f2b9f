"""Commands for people who decide: approvals, approve, reject."""

import json
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

    from ...conversation.contracts.decisions import PendingDecision
    from ...resources.base import JsonObject
    from ..runs.run_handle import RunHandle

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

    from ..console.table import print_table
    from ..runs.decisions import COLUMNS

    rows = [_row(run, each) for run, each in found]
    print_table(Console(highlight=False), COLUMNS, rows, "no call waits for a person")


def _row(run: str, asked: "PendingDecision") -> tuple[str, ...]:
    until = f"{asked.until.astimezone():%Y-%m-%d %H:%M:%S}" if asked.until else "-"
    return run, asked.id, asked.speaker, until, asked.tool or "", asked.arguments or ""


def _decide(name: str, namespace: str, given: "JsonObject") -> None:
    from ...conversation.contracts.decisions import ApproveRequest
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
