"""The request by which a run begins: what it needs of the manifests."""

from temporalio import workflow

from ...conversation.contracts.inputs import QueryInput, TurnInput
from ...conversation.contracts.requests import PinRequest


def pin_request(given: QueryInput | TurnInput) -> PinRequest:
    """What the activity ``pin`` is asked for the input of a run."""
    common = {"workflow": workflow.info().workflow_type, "namespace": given.namespace, "resources": given.resources}
    if isinstance(given, QueryInput):
        return PinRequest(kind="query", name=given.name, spec=given.spec, takes_turn=True, **common)
    return PinRequest(kind=given.kind, name=given.name, input=given.input, thread=given.thread, **common)
