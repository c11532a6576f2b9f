"""How are runs told what to do? The commands that end them, let them wait, and say something to them."""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated

import typer
from pydantic import JsonValue
from temporalio.client import Client, WorkflowUpdateFailedError

from ...conversation.contracts.control_messages import SteerRequest, SteerResult
from ...resources.base import JsonObject
from ..runs import runs
from ..runs.runs import Handle
from ..server.connection import Place
from .inspect import Namespace, RunName
from .targets import UsageError
from .terminal import at_temporal, say

app = typer.Typer()


@app.command()
def terminate(
    name: RunName,
    namespace: Namespace = "default",
    reason: Annotated[str, typer.Option("--reason", help="Why; it stands in the status.")] = "",
    now: Annotated[bool, typer.Option("--now", help="Give up the call in flight.")] = False,
) -> None:
    """Ends a run gracefully after the current turn; it counts as completed."""
    _tell(name, namespace, lambda handle: runs.terminate(handle, reason, now=now), "was told to end")


@app.command()
def cancel(name: RunName, namespace: Namespace = "default") -> None:
    """Cancels a run at once; what was said is kept."""
    _tell(name, namespace, lambda handle: handle.cancel(), "was told to cancel")


@app.command()
def pause(name: RunName, namespace: Namespace = "default") -> None:
    """Lets a run wait before the next model call."""
    _tell(name, namespace, lambda handle: handle.signal("pause"), "was told to wait")


@app.command()
def resume(name: RunName, namespace: Namespace = "default") -> None:
    """Lets a run that waits go on."""
    _tell(name, namespace, lambda handle: handle.signal("resume"), "was told to go on")


@app.command()
def steer(
    name: RunName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What is said to whoever speaks next.")],
    speaker: Annotated[str, typer.Option("--as", help="Under which name it is said.")] = "user",
    namespace: Namespace = "default",
) -> None:
    """Says something to a run, as a person who takes part."""

    async def said(handle: Handle) -> None:
        steered = await handle.execute_update("steer", SteerRequest(text=text, name=speaker), result_type=SteerResult)
        when = f"at turn {steered.turn} at the latest" if steered.turn else "before the next model call"
        say(f"it is heard {when}")

    _tell(name, namespace, said)


@app.command()
def session(
    name: RunName,
    values: Annotated[list[str], typer.Argument(metavar="NAME=VALUE …", help="JSON or text; nothing takes it out.")],
    namespace: Namespace = "default",
) -> None:
    """Changes values of a run's session, which the conditions of its panels read."""
    changes = _values(values)

    async def changed(handle: Handle) -> None:
        now: JsonObject = await handle.execute_update("session", changes)
        say(f"the session is now {json.dumps(now, ensure_ascii=False)}")

    _tell(name, namespace, changed)


def _values(given: Sequence[str]) -> JsonObject:
    """``name=value`` as what it says: JSON where it is, else a text."""
    changes: JsonObject = {}
    for each in given:
        name, equals, text = each.partition("=")
        if not (name and equals):
            raise UsageError(f"'{each}' is not of the form NAME=VALUE")
        changes[name] = _value(text) if text else None
    return changes


def _value(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        return text
    return value


def _tell(name: str, namespace: str, what: Callable[[Handle], Awaitable[object]], told: str | None = None) -> None:
    async def tell(client: Client, _place: Place) -> None:
        handle = await runs.find_run(client, name, namespace)
        try:
            await what(handle)
        except WorkflowUpdateFailedError as error:
            raise UsageError(str(error.cause)) from None
        if told:
            say(f"{handle.id} {told}")

    at_temporal(tell)
