"""What holds for every run, whatever its type? How it begins, how it goes on in a new one, and how it closes."""

import asyncio
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Generic, TypeVar

from pydantic import JsonValue, ValidationError
from temporalio import workflow
from temporalio.exceptions import ApplicationError, CancelledError

from ...conversation.contracts.continuation import Carried, State
from ...conversation.contracts.inputs import QueryInput, TurnInput
from ...conversation.contracts.requests import Pinned, Route
from ...conversation.contracts.status import Status
from ...conversation.errors import InvalidInput
from ...conversation.temporal import search_attributes
from ...resources.base import Plain
from ...resources.problems import dotted, explain
from ..calls.execute_activity import Failed
from ..state.continue_as_new import AT_ONCE
from .message_handlers import Hearing

Input = TypeVar("Input", QueryInput, TurnInput)


class Run(Hearing, Generic[Input]):
    """The base of all workflows: it can be told to stop at any time, and tells at any time how it stands.

    What it was given, of the kind that it ``takes``, holds before anything that it is told, however early that comes.
    """

    takes: type[Input]

    @workflow.init
    def __init__(self, *given: JsonValue) -> None:
        super().__init__()
        self._given: Input | Failed = received(given, self.takes)
        self.free = asyncio.Semaphore(AT_ONCE)
        self.since = workflow.info().start_time
        self.end: datetime | None = None
        self._pinned: Pinned | None = None
        if isinstance(self._given, Failed):
            return
        if not self._given.carried:
            self.session.put(self._given.session)
        elif workflow.patched("given-before-told"):
            self.resume(self._given.carried)

    @property
    def given(self) -> Input:
        """What the run was given; raises Failed by InvalidInput, where it is not what the workflow takes."""
        if isinstance(self._given, Failed):
            raise self._given
        return self._given

    def goes_on(self) -> bool:
        """Whether it goes on where another run has stopped, rather than to begin."""
        if self.given.carried and not self._pinned:  # by a history of the time before that patch
            self.resume(self.given.carried)
        return self.given.carried is not None

    def begin(self, pinned: Pinned) -> None:
        """Lets the run be found by what it is, where the server knows by what runs are searched."""
        self._pinned = pinned
        self._mark({**search_attributes.of(pinned.plan), search_attributes.PHASE: "Running"})

    def resume(self, carried: Carried) -> None:
        """Goes on where the run before this one has stopped; Temporal itself hands its attributes on."""
        self.since, self._pinned = carried.since, carried.pinned
        self.stop.resume(carried.wish)
        self.session.put(carried.session)
        self.stop.floor.resume(carried.floor)

    def carried(self, state: State) -> Carried:
        """What the run in which this one goes on must know."""
        return Carried(
            pinned=self.pinned,
            since=self.since,
            wish=self.stop.wish,
            floor=self.stop.floor.state,
            session=self.session.values,
            state=state,
        )

    @property
    def route(self) -> Route:
        """Where the run's calls wait."""
        return self._pinned.route if self._pinned else Route()

    @property
    def pinned(self) -> Pinned:
        """What the run needs and where it has begun; there as soon as it has begun."""
        assert self._pinned
        return self._pinned

    def finish(self, status: Status) -> None:
        """Lets the run be found by how it ended."""
        self._mark({search_attributes.PHASE: status.phase, search_attributes.STOP_REASON: status.stop_reason})

    def _mark(self, values: search_attributes.Values) -> None:
        if self._pinned and self._pinned.searchable:
            workflow.upsert_search_attributes(search_attributes.updates(values))


def close(status: Status, result: Plain) -> None:
    """Closes a run that was started from outside as canceled or failed, if it was, with ``result`` as the details."""
    if status.phase == "Canceled":
        raise CancelledError(f"canceled: {status.note}" if status.note else "canceled", result)
    if status.phase == "Failed":
        kind = status.failure.type if status.failure else None
        raise ApplicationError(status.error or "failed", result, type=kind, non_retryable=True)


def received(given: Sequence[JsonValue], kind: type[Input]) -> Input | Failed:
    """The input of a run, which a client may have sent in any shape, or what is wrong with it."""
    try:
        (value,) = given
        return kind.model_validate_json(json.dumps(value))
    except ValidationError as error:
        wrong = "; ".join(f"{dotted(path) or 'the input'}: {text}" for path, text in explain(error, kind))
        return Failed.by(InvalidInput(wrong))
    except (TypeError, ValueError):
        return Failed.by(InvalidInput("the workflow takes one JSON object as its input"))
