"""Lists what runs wait for from people, for the commands that show it."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from .options import OutputFormat
from .terminal import print_result

if TYPE_CHECKING:
    from pydantic import JsonValue
    from temporalio.client import Client

    from ...conversation.contracts.decisions import DecisionKind, PendingDecision
    from ..runs.run_handle import RunHandle

Pending = tuple[str, "PendingDecision"]
"""What waits, after the id of the run that a client has started."""

OptionalRun = Annotated[str | None, typer.Argument(metavar="[NAME|ID]", help="A run; by default all runs.")]
Person = Annotated[str | None, typer.Option("--as", help="Your name; by default your account and host.")]


def list_pending(
    kinds: "Sequence[DecisionKind]",
    name: str | None,
    namespace: str,
    output: OutputFormat,
    show: Callable[[Sequence[Pending]], None],
) -> None:
    """Prints what waits in a run and the runs below it, or in all runs; as text by ``show``."""
    from ..runs.decisions import all_pending_decisions, pending_decisions
    from .client import with_client, with_run
    from .formats import dump

    async def of_run(client: "Client", handle: "RunHandle") -> list[Pending]:
        return [(handle.id, each) for each in await pending_decisions(client, handle.id)]

    found = with_run(name, namespace, of_run) if name else with_client(all_pending_decisions)
    found = [(run, each) for run, each in found if each.kind in kinds]
    if output is OutputFormat.text:
        show(found)
    else:
        values: list[JsonValue] = [{"root": run, **each.model_dump(mode="json")} for run, each in found]
        print_result(dump(values, output))
