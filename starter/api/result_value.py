"""What does an answer mean to a program? The text, or what the manifest of whoever was asked says that it is."""

import json
from contextlib import suppress

from pydantic import BaseModel, ValidationError
from temporalio.client import Client

from ...conversation.contracts.inputs import QueryInput
from ...conversation.contracts.status import Status
from ...conversation.messages.panel import DebateShape, PanelShape
from ...resources.agent import Agent
from ...resources.catalog import Catalog, Resource
from ...resources.query import Query
from ...resources.team import Team
from ..runs.execution_chain import execution_chain
from ..runs.runs import Handle


async def asked_of(client: Client, run: Handle) -> Resource | None:
    """The one whom a run asks, if it asks one alone and has brought its manifest along."""
    run_id = run.run_id or (await run.describe()).run_id
    (_, started), *_ = await execution_chain(client, run.id, run_id)
    if started.workflow_type.name != "query" or started.continued_execution_run_id:  # the first one is forgotten
        return None
    (given,) = await client.data_converter.decode(started.input.payloads, [QueryInput])
    catalog = Catalog.model_validate({"manifests": given.resources})
    query = catalog.get("Query", given.namespace, given.name or "")
    targets = catalog.targets(query) if isinstance(query, Query) else ()
    return catalog.find(targets[0]) if len(targets) == 1 else None


def value_of(asked: Resource | None, status: Status, answers: type[BaseModel] | None = None) -> object:
    """What the message of a completed run means; ``answers`` is the model that structured answers are read into.

    Raises pydantic's ValidationError where the answer is none of that model.
    """
    if isinstance(asked, Team) and asked.spec.is_panel:
        ended = status.stop_reason == "terminated"  # then the panel delivers what it has come to, or its last words
        if ended or asked.spec.synthesizer is False:
            shape = DebateShape if asked.spec.strategy == "debate" else PanelShape
            with suppress(ValidationError):
                return shape.model_validate_json(status.message)
        if ended:
            return status.message
    if isinstance(asked, Team | Agent) and asked.spec.output_schema:
        return answers.model_validate_json(status.message) if answers else json.loads(status.message)
    return status.message
