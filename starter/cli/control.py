"""Commands that control a run: terminate, cancel, pause, resume, steer, session."""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ..account import account_name
from ..errors import UsageError
from .options import Namespace, RunName
from .terminal import print_message

if TYPE_CHECKING:
    from temporalio.client import Client

    from ...resources.base import JsonObject
    from ..runs.runs import RunHandle

app = typer.Typer()


@app.command()
def terminate(
    name: RunName,
    namespace: Namespace = "default",
    reason: Annotated[str, typer.Option("--reason", help="The reason, shown in the status.")] = "",
    now: Annotated[bool, typer.Option("--now", help="Don't wait for calls in flight.")] = False,
) -> None:
    """End a run gracefully after the current turn; its phase is then Completed."""
    from ..runs.runs import request_termination

    _control(name, namespace, lambda handle: request_termination(handle, reason, now=now), "termination requested")


@app.command()
def cancel(name: RunName, namespace: Namespace = "default") -> None:
    """Cancel a run immediately; its messages are kept."""
    _control(name, namespace, lambda handle: handle.cancel(), "cancellation requested")


Person = Annotated[str | None, typer.Option("--as", help="Your name; by default your account.")]


@app.command()
def pause(name: RunName, person: Person = None, namespace: Namespace = "default") -> None:
    """Pause a run before its next model call."""
    by = {"name": person or account_name()}
    _control(name, namespace, lambda handle: handle.signal("pause", by), "pause requested")


@app.command()
def resume(name: RunName, person: Person = None, namespace: Namespace = "default") -> None:
    """Resume a paused run."""
    by = {"name": person or account_name()}
    _control(name, namespace, lambda handle: handle.signal("resume", by), "resume requested")


@app.command()
def steer(
    name: RunName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The message, which the next speakers read.")],
    speaker: Annotated[str, typer.Option("--as", help="The sender's name.")] = "user",
    namespace: Namespace = "default",
) -> None:
    """Send a message into a run's discussion."""
    from ...contracts.control_messages import SteerRequest, SteerResult

    async def send(handle: "RunHandle") -> None:
        result = await handle.execute_update("steer", SteerRequest(text=text, name=speaker), result_type=SteerResult)
        when = f"at turn {result.turn} at the latest" if result.turn else "before the next model call"
        print_message(f"the message takes effect {when}")

    _control(name, namespace, send)


@app.command()
def session(
    name: RunName,
    values: Annotated[
        list[str], typer.Argument(metavar="NAME=VALUE …", help="JSON or text; an empty value removes the name.")
    ],
    namespace: Namespace = "default",
) -> None:
    """Change values in a run's session, which the conditions of its panels read."""
    changes = _read_values(values)

    async def change(handle: "RunHandle") -> None:
        current: JsonObject = await handle.execute_update("session", changes)
        print_message(f"the session is now {json.dumps(current, ensure_ascii=False)}")

    _control(name, namespace, change)


def _read_values(assignments: Sequence[str]) -> "JsonObject":
    """Values written as ``NAME=VALUE``: JSON if it can be read as such, else text. Raises UsageError."""
    changes: JsonObject = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not (name and equals):
            raise UsageError(f"'{assignment}' is not of the form NAME=VALUE")
        try:
            changes[name] = json.loads(text) if text else None
        except ValueError:
            changes[name] = text
    return changes


def _control(
    name: str, namespace: str, action: Callable[["RunHandle"], Awaitable[object]], done: str | None = None
) -> None:
    """Sends a request to a run, and prints ``done`` after its id. Raises UsageError if the run refuses it."""
    from temporalio.client import WorkflowUpdateFailedError

    from .client import with_run

    async def act(_client: "Client", handle: "RunHandle") -> None:
        try:
            await action(handle)
        except WorkflowUpdateFailedError as error:
            raise UsageError(str(error.cause)) from None
        if done:
            print_message(f"{handle.id}: {done}")

    with_run(name, namespace, act)
