"""What holds for every run, whatever its type? The signals, the query ``status``, and how it closes."""

import asyncio
import json
from collections.abc import Sequence
from datetime import datetime
from typing import TypeVar

from pydantic import JsonValue, ValidationError
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, CancelledError

from conversation import attributes
from conversation.carried import Carried, State
from conversation.errors import InvalidInput
from conversation.message import weight
from conversation.requests import EndRequest, Pinned, read_end_request
from conversation.status import Status
from resources.base import JsonObject, Plain
from resources.problems import dotted, explain
from workflows.carrying import AT_ONCE
from workflows.children import Children
from workflows.effects import Failed
from workflows.session import Session
from workflows.stopping import Stop

Input = TypeVar("Input", bound=Plain)

MAX_SESSION = 16_000
"""Bytes of what a session holds; it goes with every brief."""


class Run:
    """The base of all workflows: it can be told to stop at any time, and tells at any time how it stands."""

    def __init__(self) -> None:
        self.stop = Stop()
        self.session = Session()
        self.children = Children(self.stop, self.session)
        self.free = asyncio.Semaphore(AT_ONCE)
        self.since = workflow.info().start_time
        self.end: datetime | None = None
        self._pinned: Pinned | None = None

    def begin(self, pinned: Pinned) -> None:
        """Lets the run be found by what it is, where the server knows by what runs are searched."""
        self._pinned = pinned
        self._mark({**attributes.of(pinned.plan), attributes.PHASE: "Running"})

    def resume(self, carried: Carried) -> None:
        """Goes on where the run before this one has stopped; Temporal itself hands its attributes on."""
        self.since, self._pinned = carried.since, carried.pinned
        self.stop.resume(carried.wish)
        self.session.put(carried.session)

    def carried(self, state: State) -> Carried:
        """What the run in which this one goes on must know."""
        return Carried(
            pinned=self.pinned, since=self.since, wish=self.stop.wish, session=self.session.values, state=state
        )

    @property
    def pinned(self) -> Pinned:
        """What the run needs and where it has begun; there as soon as it has begun."""
        assert self._pinned
        return self._pinned

    def finish(self, status: Status) -> None:
        """Lets the run be found by how it ended."""
        self._mark({attributes.PHASE: status.phase, attributes.STOP_REASON: status.stop_reason})

    def _mark(self, values: attributes.Values) -> None:
        if self._pinned and self._pinned.searchable:
            workflow.upsert_search_attributes(attributes.updates(values))

    @workflow.signal(dynamic=True, unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def receive(self, name: str, payloads: Sequence[RawValue]) -> None:
        """``terminate_team`` with ``{reason, now}``, a text, nothing, or anything unreadable; ``cancel`` likewise.

        One handler takes every signal: one with declared parameters would fail on payloads that don't fit them.
        """
        value = _value(payloads)
        request = read_end_request(value)
        if name == "terminate_team":
            self.stop.ask("terminated", request)
            await self.children.end()
        elif name == "cancel":
            self.stop.ask("canceled", EndRequest(reason=request.reason, now=True))
        elif name == "session":
            await self._change(value if isinstance(value, dict) else {})

    @workflow.update(name="session", description="Changes values of the session; null takes one out. Gives them all.")
    async def change_session(self, changes: JsonObject) -> JsonObject:
        """What conditions and functions of running panels read from then on, in this run and in those below it."""
        return await self._change(changes)

    async def _change(self, changes: JsonObject) -> JsonObject:
        values = self.session.put(changes)
        await self.children.pass_on("session", changes)
        return values

    @change_session.validator
    def _bounded(self, changes: JsonObject) -> None:
        """Refuses what would make every brief heavy."""
        if weight(json.dumps(changes)) > MAX_SESSION:
            raise ValueError(f"a session's values may not be longer than {MAX_SESSION:,} bytes")


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


def _value(payloads: Sequence[RawValue]) -> JsonValue:
    """What a signal brings; nothing where that can't be read."""
    if not payloads:
        return None
    try:
        value: JsonValue = workflow.payload_converter().from_payload(payloads[0].payload)
    except InvalidInput:
        return None
    return value
