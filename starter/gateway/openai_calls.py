"""Tools of OpenAI's clients: an answer ends with their calls, and the next request brings the results into the run."""

import asyncio
import contextlib
import itertools
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from ...contracts.decisions import MAX_CLIENT_CALLS
from ...contracts.message import TokenUsage
from ..history.events import (
    CalledTool,
    Event,
    ModelAnsweredEvent,
    ToolCalledEvent,
    ToolFailedEvent,
    ToolReturnedEvent,
    WaitEndedEvent,
    WaitStartedEvent,
)
from .access import Caller
from .errors import BadRequestError, NotFoundError
from .run import Run
from .runs import Runs
from .speeches import Begun, Over, Speeches, Update, Waits, history_place
from .targets import ServedTarget

PREFIX = "call_"
"""The beginning of a call's id; the id of the decision and that of the run follow."""

PLACE = re.compile(r"([0-9a-f]{10})_(.+)", re.DOTALL)
"""A decision and its run, as ids have them: neither the name of a run's target nor a decision has an underscore."""

QUIET_SECONDS = 2.0
"""Seconds without an event after which a call that waits is shown, though others of its message may follow."""


@dataclass(frozen=True)
class ClientCall:
    """A call that waits for the client; ``arguments`` is JSON text."""

    id: str
    decision: str
    tool: str
    arguments: str


@dataclass(frozen=True)
class CallsWait:
    """The run waits for the results of these calls since ``at``: the end of a part of the run."""

    calls: Sequence[ClientCall]
    at: datetime


@dataclass(frozen=True)
class ToolResult:
    """What the client's tool has returned for the call ``id``. ``is_new``: it is at the end of the request."""

    id: str
    output: str
    is_new: bool

    @property
    def place(self) -> tuple[str, str | None]:
        """The run that has made the call, and its decision."""
        return place_of(self.id.removeprefix(PREFIX))


def place_of(text: str) -> tuple[str, str | None]:
    """The run's id, and the decision that precedes the part of the run, from an id without its prefix."""
    match = PLACE.fullmatch(text)
    return (match[2], match[1]) if match else (text, None)


def call_id(run: Run, decision: str) -> str:
    """The id of the call that waits for a decision, which ``place_of`` reads without its prefix."""
    return f"{PREFIX}{decision}_{run.id}"


def is_call(call: object) -> bool:
    """Whether an id is one that this gateway has given to a call."""
    return isinstance(call, str) and call.startswith(PREFIX) and PLACE.fullmatch(call, len(PREFIX)) is not None


@dataclass
class Part:
    """A part of a run, which one answer shows: to its end, or until it waits for calls of the client's tools.

    It begins with the run, or once the calls of all decisions in ``given`` have got their results. It follows from the
    history alone: any gateway shows the same part again.
    """

    run: Run
    given: frozenset[str] = frozenset()
    last: str | None = None
    """The decision of ``given`` that was the last to get its result; None at the beginning of the run."""

    usage: TokenUsage = field(default_factory=TokenUsage)
    """The token usage of the models in this part."""

    @property
    def id(self) -> str:
        """The id of the part, which ``place_of`` reads."""
        return f"{self.last}_{self.run.id}" if self.last else self.run.id

    async def updates(self, *, wait: bool = True, live: bool = True) -> AsyncGenerator[Update | CallsWait, None]:
        """The updates of the speeches in this part; the first is Begun, the last one Over or CallsWait."""
        speeches = Speeches(self.run.id)
        waiting = _Waiting(self.run)
        async with contextlib.aclosing(self.run.events(wait=wait, live=live, depth_first=True)) as events:
            for update in await self._first(events, speeches, waiting) if self.given else ():
                yield update
                if isinstance(update, Over):
                    return
            read = _until_quiet(events, waiting)
            while not waiting.is_settled and (event := await anext(read, None)):
                await waiting.feed(event)
                if isinstance(event, ModelAnsweredEvent):
                    self.usage += event.usage
                for update in speeches.feed(event):
                    if not _is_own_wait(update):
                        yield self._shown(update)
                    if isinstance(update, Over):
                        return
        if waiting.is_settled or (wait and waiting.open):
            yield waiting.calls

    async def _first(self, events: AsyncIterator[Event], speeches: Speeches, waiting: "_Waiting") -> list[Update]:
        """Reads what precedes this part. Returns the updates with which it begins."""
        missing = set(self.given)
        first: list[Update] = []
        async for event in events:
            await waiting.feed(event)
            for update in speeches.feed(event):
                if isinstance(update, Begun):
                    first = [update]
                elif isinstance(update, Over):  # the run has ended without the results
                    return [*first, update]
            if isinstance(event, WaitEndedEvent) and event.wait in missing:
                missing.remove(event.wait)
                self.last = event.wait
                if not missing:
                    return [
                        Begun(update.event.model_copy(update={"at": event.at}))
                        for update in first
                        if isinstance(update, Begun)
                    ]
        return []

    async def results(self) -> Mapping[str, str]:
        """The results after which this part begins, by decision. Those of the first part are none.

        Results of calls that wait together are one input, also if they came one by one: the history is the same.
        """
        reading = _Results()
        async with contextlib.aclosing(self.run.events(live=False)) as events:
            while self.last and not reading.has_all(self.last) and (event := await anext(events, None)):
                if event.run == self.run.id:
                    reading.feed(event)
        return reading.given if self.last in reading.given else {}

    def _shown(self, update: Update) -> Update:
        """An update as it is, except that a later part of the run ends with its own token usage."""
        if self.last and isinstance(update, Over):
            return Over(update.event.model_copy(update={"usage": self.usage}))
        return update


@dataclass
class _Waiting:
    """The calls of the client's tools for which a run waits.

    Those of one message wait together, up to a limit, and begin to wait one after the other. They are shown at once.
    """

    run: Run
    open: dict[str, WaitStartedEvent] = field(default_factory=dict)
    _answer: tuple[CalledTool, ...] = ()
    """The calls of the newest message that have neither ended nor begun to wait before the current batch."""

    _batch: int = 0
    """How many calls of the current batch have not begun to wait, nor failed."""

    _tools: frozenset[str] | None = None
    _width: int = 1

    @property
    def is_settled(self) -> bool:
        """Whether the run waits, and no other call begins to wait before the client has given a result."""
        return bool(self.open) and self._batch <= 0

    async def feed(self, event: Event) -> None:
        """Takes an event of the run into account."""
        if event.run != self.run.id:
            return
        match event:
            case ModelAnsweredEvent():
                self._answer = event.tool_calls
                self._batch = 0
            case ToolReturnedEvent() | ToolFailedEvent():
                self._settle(event.tool_call)
            case WaitStartedEvent(kind="client_tool"):
                if self._batch <= 0 and not self.open:
                    self._batch = await self._size()
                self.open[event.wait] = event
                self._batch -= 1
            case WaitEndedEvent():
                self.open.pop(event.wait, None)

    def _settle(self, tool_call: str | None) -> None:
        self._answer = tuple(call for call in self._answer if call.id != tool_call)
        if self._batch > 0:
            self._batch -= 1

    async def _size(self) -> int:
        """How many calls of the newest message wait together."""
        if self._tools is None:
            spec = await self.run.spec()
            client = spec.client if spec else None
            self._tools = frozenset(tool.name for tool in client.tools) if client else frozenset()
            self._width = MAX_CLIENT_CALLS if client and client.settings.parallel_tool_calls else 1
        tools = self._tools
        before = itertools.dropwhile(lambda call: call.name not in tools, self._answer)
        return min(sum(1 for _ in itertools.takewhile(lambda call: call.name in tools, before)), self._width)

    @property
    def calls(self) -> CallsWait:
        """The calls that wait."""
        return CallsWait(
            at=max(event.at for event in self.open.values()),
            calls=[
                ClientCall(
                    id=call_id(self.run, wait),
                    decision=wait,
                    tool=event.tool or "",
                    arguments=event.text or "{}",
                )
                for wait, event in self.open.items()
            ],
        )


@dataclass
class _Results:
    """The newest results of the client's tools, by decision: those of calls that wait together."""

    given: dict[str, str] = field(default_factory=dict)
    _open: set[str] = field(default_factory=set)
    _ended: WaitEndedEvent | None = None
    """The wait that has ended last: the call for which it was begins at the same place."""

    _calls: dict[str, str] = field(default_factory=dict)
    """The decisions of calls that go on with their results, by the id of the call."""

    def has_all(self, last: str) -> bool:
        """Whether the result for a decision is known, and those that were given with it."""
        return last in self.given and not self._calls

    def feed(self, event: Event) -> None:
        """Takes an event of the run into account."""
        match event:
            case WaitStartedEvent(kind="client_tool"):
                if not (self._open or self._calls):
                    self.given.clear()
                self._open.add(event.wait)
            case WaitEndedEvent() if event.wait in self._open:
                self._open.remove(event.wait)
                self._ended = event
            case ToolCalledEvent() if self._ended and history_place(event) == history_place(self._ended):
                self._calls[event.call] = self._ended.wait
            case ToolReturnedEvent() | ToolFailedEvent():
                if decision := self._calls.pop(event.call, None):
                    self.given[decision] = (event.text if isinstance(event, ToolReturnedEvent) else event.error) or ""


def _is_own_wait(update: Update) -> bool:
    return isinstance(update, Waits) and update.event.kind == "client_tool"


async def _until_quiet(events: AsyncGenerator[Event, None], waiting: _Waiting) -> AsyncGenerator[Event, None]:
    """The events, to their end, or until a call waits and no event comes for a while."""
    while True:
        following = asyncio.ensure_future(anext(events, None))
        try:
            timeout = QUIET_SECONDS if waiting.open else None
            await asyncio.wait([following], timeout=timeout)
            event = following.result() if following.done() else None
        finally:
            if not following.done():
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
        if event is None:
            return
        yield event


async def give_results(
    runs: Runs, caller: Caller, target: ServedTarget, results: Sequence[ToolResult], param: str
) -> Part:
    """Gives results to the run whose calls they are of, and returns the part of the run that follows.

    Results of earlier parts, which clients repeat, are not given again. Raises NotFoundError if there is no such run or
    the caller may not see it, BadRequestError for calls of several runs or of another target, and ConflictError if a
    call has got another result or waits no more.
    """
    run_id, _ = results[-1].place
    try:
        run = await runs.find(caller, run_id)
    except NotFoundError:
        text = f"the call '{results[-1].id[:200]}' belongs to no run that exists, or you may not see it"
        raise NotFoundError(text, param=param) from None
    spec = await run.spec()
    asked = spec.targets if spec else ()
    if [(each.type, each.name) for each in asked] != [(target.kind, target.name)]:
        raise BadRequestError(f"model: the calls do not belong to {target.id}", param="model")
    pending = {decision.id for decision in await run.pending()} if await run.is_open() else set()
    given = set()
    last = None
    for result in results:
        owner, decision = result.place
        if owner != run.id and result.is_new:
            raise BadRequestError(f"{param}: the results belong to calls of several runs", param=param)
        if owner == run.id and decision and (result.is_new or decision in pending):
            await run.give_result(decision, result.output)
            given.add(decision)
            last = decision
    return Part(run, frozenset(given), last)
