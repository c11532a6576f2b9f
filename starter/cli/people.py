"""Commands for decisions by people: approvals, approve, reject, inbox, reply."""

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import quote

import typer

from ..account import client_identity
from ..errors import UsageError
from .options import Gateway, Namespace, Output, OutputFormat, RunName
from .terminal import dump, print_message, print_result

if TYPE_CHECKING:
    from pydantic import JsonValue
    from temporalio.client import Client

    from ...contracts.decisions import ApproveRequest, PendingDecision
    from ...contracts.message import PersonDecision
    from ...resources.base import JsonObject
    from ..operations.remote import RemoteGateway
    from ..runs.runs import RunHandle

app = typer.Typer()

OptionalRun = Annotated[str | None, typer.Argument(metavar="[NAME|ID]", help="A run; by default all runs.")]
OptionalNamespace = Annotated[
    str | None,
    typer.Option("-n", "--namespace", help="The namespace of the Query; without a run, only runs of its Queries."),
]
Person = Annotated[str | None, typer.Option("--as", help="Your name; by default your account and host.")]
Call = Annotated[
    str | None,
    typer.Argument(metavar="[CALL]", help="The id of the call, from 'baton approvals'; needed if several wait."),
]
Reason = Annotated[str, typer.Option("--reason", help="The reason; if a call is rejected, the model receives it.")]
Remember = Annotated[bool, typer.Option("--remember", help="Apply the decision to later calls of the tool in the run.")]


@app.command()
def approvals(
    name: OptionalRun = None, namespace: OptionalNamespace = None, output: Output = OutputFormat.text
) -> None:
    """List pending approvals of tool calls and budgets, in a run and its child runs, or in all runs."""
    waiting = [(root, decision) for root, decision in _pending(name, namespace) if decision.needs_approval]
    if output is OutputFormat.text:
        _print_text(waiting, "No pending approvals.")
    else:
        print_result(dump([_value(root, decision) for root, decision in waiting], output))


@app.command()
def approve(
    name: RunName,
    call: Call = None,
    arguments: Annotated[str | None, typer.Option("--arguments", help="Changed arguments, as JSON.")] = None,
    reason: Reason = "",
    remember: Remember = False,
    person: Person = None,
    namespace: Namespace = "default",
    gateway: Gateway = None,
) -> None:
    """Approve a tool call, optionally with changed arguments, or a budget increase."""
    from ...contracts.decisions import ApproveRequest

    changed = _read_arguments(arguments)
    if remote := _gateway(gateway, person):
        more: JsonObject = {"reason": reason, "remember": remember}
        _decide_remotely(remote, name, call, "approve", more if changed is None else {**more, "arguments": changed})
        return
    by = person or client_identity()

    def request(call: str) -> ApproveRequest:
        return ApproveRequest(call=call, arguments=changed, reason=reason, remember=remember, by=by)

    _decide(name, namespace, call, request)


@app.command()
def reject(
    name: RunName,
    call: Call = None,
    reason: Reason = "",
    remember: Remember = False,
    person: Person = None,
    namespace: Namespace = "default",
    gateway: Gateway = None,
) -> None:
    """Reject a tool call or a budget increase; the model receives the reason."""
    from ...contracts.decisions import ApproveRequest

    if remote := _gateway(gateway, person):
        _decide_remotely(remote, name, call, "reject", {"reason": reason, "remember": remember})
        return
    by = person or client_identity()

    def request(call: str) -> ApproveRequest:
        return ApproveRequest(call=call, approved=False, reason=reason, remember=remember, by=by)

    _decide(name, namespace, call, request)


@app.command()
def inbox(name: OptionalRun = None, namespace: OptionalNamespace = None, output: Output = OutputFormat.text) -> None:
    """List open questions for people, in a run and its child runs, or in all runs."""
    questions = [(root, decision) for root, decision in _pending(name, namespace) if decision.kind == "question"]
    if output is OutputFormat.text:
        _print_text(questions, "No open questions.")
    else:
        print_result(dump([_value(root, decision) for root, decision in questions], output))


@app.command()
def reply(
    name: RunName,
    text: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="The reply; '-' reads it from stdin.")] = None,
    decline: Annotated[
        bool, typer.Option("--decline", help="Decline a question from a server; TEXT is the reason, if any.")
    ] = False,
    to: Annotated[str | None, typer.Option("--to", help="The id of the question, if there are several.")] = None,
    person: Person = None,
    namespace: Namespace = "default",
    gateway: Gateway = None,
) -> None:
    """Reply to an open question of a run: one to a person who is a member of a team, or one from a server."""
    from ...contracts.decisions import ReplyRequest
    from ..runs.decisions import reply as send_reply

    if text is None and not decline:
        raise UsageError("the reply is missing: pass TEXT, or '-' to read it from stdin")
    try:
        content = sys.stdin.read() if text == "-" else text or ""
    except UnicodeDecodeError as error:
        raise UsageError(f"the reply can't be read: {error}") from None
    if remote := _gateway(gateway, person):
        body: JsonObject = {"text": content, "declines": decline}
        remote.post(f"/runs/{quote(name, safe='')}/reply", body if to is None else {**body, "to": to})
        print_message("Question declined." if decline else "Reply sent.")
        return
    request = ReplyRequest(text=content, to=to, by=person or client_identity(), declines=decline)
    _send(name, namespace, lambda client, handle: send_reply(client, handle, request))
    print_message("Question declined." if decline else "Reply sent.")


def _gateway(url: str | None, person: str | None) -> "RemoteGateway | None":
    """The gateway that decides, which knows the person by the key; None if none is to be used. Raises UsageError."""
    from ..operations.remote import RemoteGateway

    remote = RemoteGateway.of(url)
    if remote and person:
        raise UsageError("--as is not possible over a gateway: it knows you by your key")
    return remote


def _decide_remotely(
    gateway: "RemoteGateway", run: str, call: str | None, verb: Literal["approve", "reject"], more: "JsonObject"
) -> None:
    """Decides about a call of a run, by its id, or about the only one that waits. Raises UsageError."""
    if call is None:
        waiting = [
            decision["id"]
            for decision in gateway.waiting(run)
            if isinstance(decision.get("id"), str) and decision.get("kind", "approval") in ("approval", "budget")
        ]
        if len(waiting) != 1:
            listed = ", ".join(map(str, waiting)) or "nothing"
            raise UsageError(f"specify which call of {run} to decide; those that you may see: {listed}")
        call = str(waiting[0])
    answer = gateway.post(f"/runs/{quote(run, safe='')}/{verb}", {"call": call, **more})
    decision = answer.get("decision")
    missing = decision.get("missing") if isinstance(decision, dict) else None
    print_message(f"{call} {'approved' if verb == 'approve' else 'rejected'}.")
    if missing:
        print_message(f"It waits for {missing} more {'person' if missing == 1 else 'people'}.")


def _pending(name: str | None, namespace: str | None) -> "list[tuple[str, PendingDecision]]":
    """The pending decisions of a run and its child runs, or of all runs, with the ids of their root runs.

    Runs that can't be queried are reported on stderr.
    """
    from ..runs.decisions import all_pending_decisions, pending_decisions
    from .client import with_client, with_run

    async def of_run(client: "Client", handle: "RunHandle") -> "list[tuple[str, PendingDecision]]":
        return [(handle.id, decision) for decision in await pending_decisions(client, handle.id, handle.run_id)]

    if name:
        return with_run(name, namespace or "default", of_run)
    pending = with_client(lambda client: all_pending_decisions(client, namespace))
    for run, error in pending.unanswered.items():
        print_message(f"note: the pending decisions of {run} are unknown: {error}")
    return pending.decisions


def _print_text(decisions: "list[tuple[str, PendingDecision]]", none: str) -> None:
    from rich.console import Console

    from ..console.status import print_decisions

    print_decisions(Console(highlight=False), decisions)
    if not decisions:
        print_result(none)


def _value(root: str, decision: "PendingDecision") -> "JsonValue":
    return {"root": root, **decision.model_dump(mode="json")}


def _read_arguments(text: str | None) -> "JsonObject | None":
    from ...contracts.text import parse_json

    if text is None:
        return None
    try:
        value = parse_json(text, constants=False)
    except ValueError as error:
        raise UsageError(f"--arguments: is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError("--arguments: must be a JSON object")
    return value


def _decide(name: str, namespace: str, call: str | None, request: "Callable[[str], ApproveRequest]") -> None:
    """Sends the decision about a call, or about the only one that waits."""
    from ..runs.decisions import decide, only_call

    async def send(client: "Client", handle: "RunHandle") -> "PersonDecision":
        decided = call or await only_call(client, handle)
        decision = await decide(client, handle, request(decided))
        print_message(f"{decided} {'approved' if decision.approved else 'rejected'}.")
        return decision

    _send(name, namespace, send)


def _send(
    name: str, namespace: str, send: "Callable[[Client, RunHandle], Awaitable[PersonDecision]]"
) -> "PersonDecision":
    """The result of sending a decision to a run. Raises UsageError if the run rejects it."""
    from ..runs.decisions import NotDecided
    from .client import with_run

    async def work(client: "Client", handle: "RunHandle") -> "PersonDecision":
        try:
            return await send(client, handle)
        except NotDecided as error:
            raise UsageError(str(error)) from None

    return with_run(name, namespace, work)
