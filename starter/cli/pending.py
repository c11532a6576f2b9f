"""Lists what runs wait for from people, for the commands that show it."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from .options import OutputFormat
from .terminal import print_message, print_result

if TYPE_CHECKING:
    from pydantic import JsonValue
    from temporalio.client import Client

    from ...conversation.contracts.decisions import DecisionKind, PendingDecision
    from ..runs.run_handle import RunHandle

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
