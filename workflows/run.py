"""What holds for every run, whatever its type? The signals, the query ``status``, and how it closes."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import TypeVar

from pydantic import JsonValue, ValidationError
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, CancelledError

from conversation import attributes
from conversation.errors import InvalidInput
from conversation.requests import EndRequest, Pinned, Route, read_end_request
from conversation.status import Status
from resources.base import Plain
from resources.problems import dotted, explain
from workflows.children import Children
from workflows.effects import Failed
from workflows.stopping import Stop

Input = TypeVar("Input", bound=Plain)


class Run:
    """The base of all workflows: it can be told to stop at any time, and tells at any time how it stands."""

    def __init__(self) -> None:
        self.stop = Stop()
        self.children = Children(self.stop)
        self.end: datetime | None = None
        self.searchable = False
        self.route = Route()

    def begin(self, pinned: Pinned) -> None:
        """Lets the run be found by what it is, where the server knows by what runs are searched; its calls wait where
        they are to."""
        self.searchable, self.route = pinned.searchable, pinned.route
        self._mark({**attributes.of(pinned.plan), attributes.PHASE: "Running"})

    def finish(self, status: Status) -> None:
        """Lets the run be found by how it ended."""
        self._mark({attributes.PHASE: status.phase, attributes.STOP_REASON: status.stop_reason})

    def _mark(self, values: attributes.Values) -> None:
        if self.searchable:
            workflow.upsert_search_attributes(attributes.updates(values))

    @workflow.signal(dynamic=True, unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def receive(self, name: str, payloads: Sequence[RawValue]) -> None:
        """``terminate_team`` with ``{reason, now}``, a text, nothing, or anything unreadable; ``cancel`` likewise.

        One handler takes every signal: one with declared parameters would fail on payloads that don't fit them.
        """
        request = _read(payloads)
        if name == "terminate_team":
            self.stop.ask("terminated", request)
            await self.children.tell()
        elif name == "cancel":
            self.stop.ask("canceled", EndRequest(reason=request.reason, now=True))


def close(status: Status, result: Plain) -> None:
    """Closes a run that was started from outside as canceled or failed, if it was, with ``result`` as the details."""
    if status.phase == "Canceled":
        raise CancelledError(f"canceled: {status.note}" if status.note else "canceled", result)
    if status.phase == "Failed":
        kind = status.failure.type if status.failure else None
        raise ApplicationError(status.error or "failed", result, type=kind, non_retryable=True)


def received(given: Sequence[JsonValue], kind: type[Input]) -> Input:
    """The input of a run, which a client may have sent in any shape.

    Raises:
        Failed: by InvalidInput, where it is not what the workflow takes.
    """
    try:
        (value,) = given
        return kind.model_validate_json(json.dumps(value))
    except ValidationError as error:
        wrong = "; ".join(f"{dotted(path) or 'the input'}: {text}" for path, text in explain(error, kind))
        raise Failed.by(InvalidInput(wrong)) from None
    except (TypeError, ValueError):
        raise Failed.by(InvalidInput("the workflow takes one JSON object as its input")) from None


def _read(payloads: Sequence[RawValue]) -> EndRequest:
    if not payloads:
        return EndRequest()
    try:
        value: JsonValue = workflow.payload_converter().from_payload(payloads[0].payload)
        return read_end_request(value)
    except InvalidInput:
        return EndRequest()
