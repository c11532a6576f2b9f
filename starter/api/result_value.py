"""Reads the answer of a run into the type that the target's manifest declares."""

import json
from contextlib import suppress

from pydantic import BaseModel, ValidationError
from temporalio.client import Client

from ...conversation.contracts.inputs import QueryInput
from ...conversation.contracts.status import Status
from ...conversation.messages.panel import DebateShape, PanelShape
from ...conversation.temporal.execution_chain import execution_chain
from ...resources.agent import Agent
from ...resources.catalog import Catalog, Resource
from ...resources.query import Query
from ...resources.team import Team
from ..runs.run_handle import RunHandle


async def target_of(client: Client, run: RunHandle) -> Resource | None:
    """The target of a run; None if it has several, or if its manifest stands with the worker."""
    run_id = run.run_id or (await run.describe()).run_id
    (_, started), *_ = await execution_chain(client, run.id, run_id)
    if started.workflow_type.name != "query" or started.continued_execution_run_id:  # the first run is deleted
        return None
    (given,) = await client.data_converter.decode(started.input.payloads, [QueryInput])
    catalog = Catalog.model_validate({"manifests": given.resources})
    query = catalog.get("Query", given.namespace, given.name or "")
    targets = catalog.targets(query) if isinstance(query, Query) else ()
    return catalog.find(targets[0]) if len(targets) == 1 else None


_ENDED_EARLY = ("terminated", "budget")
"""Why a run is complete that has not come to its answer: its message is the last one, or the state of a panel."""


def value_of(target: Resource | None, status: Status, output_model: type[BaseModel] | None = None) -> object:
    """The value of a completed run's message; ``output_model`` is the model into which structured answers are read.

    A run that has ended early may not have come to an answer in that form: then it is the message. Raises pydantic's
    ValidationError where another answer does not fit that model.
    """
    ended = status.stop_reason in _ENDED_EARLY
    if isinstance(target, Team) and target.spec.is_panel and (ended or target.spec.synthesizer is False):
        shape = DebateShape if target.spec.strategy == "debate" else PanelShape
        with suppress(ValidationError):
            return shape.model_validate_json(status.message)
    if isinstance(target, Team | Agent) and target.spec.output_schema:
        try:
            return output_model.model_validate_json(status.message) if output_model else json.loads(status.message)
        except ValueError:  # of either
            if not ended:
                raise
    return status.message
