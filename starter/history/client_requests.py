"""Decodes the signals, updates and cancellations that clients have sent to a run."""

from datetime import datetime
from typing import Any, get_args

from pydantic import JsonValue
from temporalio.api.common.v1 import Payloads
from temporalio.converter import DataConverter

from ...conversation.contracts.control_messages import read_person, read_steer_request, read_terminate_request
from ...conversation.contracts.decisions import ApproveRequest, RememberedDecision
from ...conversation.failure import BatonError
from ...resources.base import JsonObject
from .run_events import RequestKind, RequestReceived, RunInfo

REQUEST_EVENTS = (
    "workflow_execution_signaled",
    "workflow_execution_update_accepted",
    "workflow_execution_cancel_requested",
)
"""The names of the history events with which a run gets a request."""


async def decode_request(
    converter: DataConverter, run: RunInfo, at: datetime, event: str, attributes: Any
) -> RequestReceived | None:
    """The request of a client; None for what a parent sends on to its child, and for what a run ignores."""
    if event == "workflow_execution_update_accepted":
        request = attributes.accepted_request
        name, payloads, client = request.input.name, request.input.args, request.meta.identity
    elif attributes.external_workflow_execution.workflow_id:
        return None
    elif event == "workflow_execution_cancel_requested":
        return RequestReceived(run, at, "cancel", attributes.identity, {"reason": attributes.cause or None})
    else:
        name, payloads, client = attributes.signal_name, attributes.input, attributes.identity
    value = await _value(converter, payloads)
    kind: RequestKind | None = next((each for each in get_args(RequestKind) if each == name), None)
    data = _data(kind, value) if kind else None
    if kind is None or data is None:
        return None
    return RequestReceived(run, at, kind, _person(kind, value) or client, data)


async def decode_decision(
    converter: DataConverter, event: str, attributes: Any
) -> ApproveRequest | RememberedDecision | None:
    """A person's decision, as a client has sent it, or as another run has sent it on; None for all else."""
    if event == "workflow_execution_update_accepted":
        given = attributes.accepted_request.input
        kind: type[ApproveRequest | RememberedDecision] | None = ApproveRequest if given.name == "approve" else None
        payloads = given.args
    elif event == "workflow_execution_signaled":
        kind = RememberedDecision if attributes.signal_name in ("remember", "remembered") else None
        payloads = attributes.input
    else:
        return None
    try:
        return kind.model_validate(await _value(converter, payloads)) if kind else None
    except ValueError:
        return None


def _person(kind: RequestKind, value: JsonValue) -> str | None:
    """The name that a request gives; a text alone is a name only where it can't be a reason or a message."""
    if kind == "steer" and (message := read_steer_request(value)):
        return message.name
    return read_person(value) if kind in ("pause", "resume") or isinstance(value, dict) else None


def _data(kind: RequestKind, value: JsonValue) -> JsonObject | None:
    """What a request says; None if a run ignores it."""
    match kind:
        case "steer":
            message = read_steer_request(value)
            return {"text": message.text} if message else None
        case "session":
            return {"changes": value} if isinstance(value, dict) else None
        case "terminate_team" | "cancel":
            request = read_terminate_request(value)
            return {"reason": request.reason or None, "now": request.now or None}
    return {}


async def _value(converter: DataConverter, payloads: Payloads) -> JsonValue:
    """The value that was sent; None if there is none or it can't be read, as a run takes it."""
    if not payloads.payloads:
        return None
    try:
        values = await converter.decode(payloads.payloads[:1])
    except BatonError:
        return None
    value: JsonValue = values[0]
    return value
