"""Commands that control a run: terminate, cancel, pause, resume, steer, session."""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ..account import account_name, client_identity
from ..errors import UsageError
from ..text import escape_line
from .exit_codes import REFUSED, CommandEndError
from .options import Namespace, RunName, RunNames, read_value
from .terminal import print_message

if TYPE_CHECKING:
    from temporalio.client import Client

    from ...resources.base import JsonObject
    from ..runs.runs import RunHandle

app = typer.Typer()


@app.command()
def terminate(
    names: RunNames,
    namespace: Namespace = "default",
    reason: Annotated[str, typer.Option("--reason", help="The reason, shown in the status.")] = "",
    now: Annotated[bool, typer.Option("--now", help="Don't wait for calls in flight.")] = False,
) -> None:
    """End runs gracefully after the current turn; their phase is then Completed."""
    from ..runs import control

    _control(names, namespace, lambda _, run: control.terminate(run, reason, now=now), "termination requested")


@app.command()
def cancel(names: RunNames, namespace: Namespace = "default") -> None:
    """Cancel runs immediately; their messages remain stored."""
    from ..runs import control

    _control(names, namespace, lambda _, run: control.request_cancellation(run), "cancellation requested")


Person = Annotated[str | None, typer.Option("--as", help="Your name; by default your account and host.")]


@app.command()
def pause(names: RunNames, person: Person = None, namespace: Namespace = "default") -> None:
    """Pause runs before their next model call."""
    from ..runs import control

    by = person or client_identity()
    _control(names, namespace, lambda _, run: control.pause(run, by), "pause requested")


@app.command()
def resume(names: RunNames, person: Person = None, namespace: Namespace = "default") -> None:
    """Resume paused runs."""
    from ..runs import control

    by = person or client_identity()
    _control(names, namespace, lambda _, run: control.resume(run, by), "resume requested")


@app.command()
def steer(
    name: RunName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The message, which the next speakers read.")],
    speaker: Annotated[str | None, typer.Option("--as", help="Your name; by default your account.")] = None,
    namespace: Namespace = "default",
) -> None:
    """Send a message into a run's discussion."""
    from ..runs import control

    async def send(client: "Client", run: "RunHandle") -> None:
        result = await control.steer(client, run, text, speaker or account_name())
        when = f"at turn {result.turn} at the latest" if result.turn else "before the next model call"
        print_message(f"the message takes effect {when}")

    _control([name], namespace, send)


@app.command()
def session(
    name: RunName,
    values: Annotated[
        list[str], typer.Argument(metavar="NAME=VALUE …", help="JSON or text; an empty value removes the name.")
    ],
    namespace: Namespace = "default",
) -> None:
    """Change values in a run's session, which the conditions of its panels read."""
    from ..runs import control

    changes = _read_values(values)

    async def change(client: "Client", run: "RunHandle") -> None:
        current = await control.change_session(client, run, changes)
        print_message(f"the session is now {json.dumps(current, ensure_ascii=False)}")

    _control([name], namespace, change)


def _read_values(assignments: Sequence[str]) -> "JsonObject":
    """Values written as ``NAME=VALUE``, parsed as JSON if possible, otherwise text. Raises UsageError."""
    changes: JsonObject = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not (name and equals):
            raise UsageError(f"'{assignment}' is not of the form NAME=VALUE")
        changes[name] = read_value(text, assignment) if text else None
    return changes


def _control(
    names: Sequence[str],
    namespace: str,
    action: Callable[["Client", "RunHandle"], Awaitable[object]],
    done: str | None = None,
) -> None:
    """Sends a request to open runs, and prints ``done`` after the id of each.

    A run that doesn't exist, has ended, or rejects the request is reported and doesn't affect the others; the exit code
    is then 1.
    """
    from ..runs.control import RejectedError, RunEndedError, check_open
    from ..runs.runs import NoSuchRunError, NotServedError, find_run
    from .client import with_client

    async def act(client: "Client") -> None:
        refused = False
        for name in names:
            try:
                handle = await find_run(client, name, namespace)
                await check_open(handle)
                await action(client, handle)
            except (NoSuchRunError, NotServedError, RunEndedError, RejectedError) as error:
                print_message(f"error: {error}", style="red")
                refused = True
                continue
            if done:
                print_message(f"{escape_line(handle.id)}: {done}")
        if refused:
            raise CommandEndError(REFUSED)

    with_client(act)
