"""The difference between two runs: where they part, and what each of them does from there."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import SequenceMatcher
from itertools import islice, zip_longest
from typing import Literal, NamedTuple

from temporalio.client import Client

from ...contracts.inputs import ForkedRun
from ...contracts.message import Head, TokenUsage
from ...contracts.panel import PerformResult
from ...contracts.requests import AskModelResult, Pinned, UseToolResult
from ...contracts.status import Phase
from ...contracts.turn import StopReason
from ...resources.base import JsonModel
from ..runs.runs import RunHandle
from ..runs.start import fork_chain
from .events import (
    Event,
    MessageEvent,
    ModelAnsweredEvent,
    RunEndedEvent,
    ToolCalledEvent,
    ToolFailedEvent,
    ToolReturnedEvent,
)
from .follow import RunTree
from .fork import last_execution
from .live_state import usage_of
from .run_events import CallEnded, RunEvent, RunInfo
from .translator import EventTranslator

DifferingField = Literal["speaker", "words", "tool", "arguments", "result", "place", "additional", "end"]
"""In what two runs first differ; ``additional``: a step of one of them alone; ``end``: the other one has no more."""

REASONS: dict[DifferingField, str] = {
    "place": "they are in different runs or rounds",
    "speaker": "another one speaks",
    "tool": "another tool is called, or none",
    "arguments": "the tool gets other arguments",
    "words": "the words differ",
    "result": "the tool returns something else",
    "additional": "one of them has an additional step",
    "end": "only one of them continues",
}
"""What the field in which two steps differ says of the runs."""

ALIGNED = 500
"""Steps of each run that are aligned at once: the time that takes grows with their square."""


class RunStep(JsonModel):
    """A message in a run, or a call of a tool in it.

    ``place`` is the path of the run below the root run, as in ``turn-2/NAME``; empty in the root run itself. A message
    has ``words``; a call has a ``tool``, its ``arguments`` as JSON text, and its ``result``, or its ``error``.
    ``usage`` and ``seconds`` of a message are those of the model calls that led to it. ``number`` is the place of a
    message in the conversation of its run, from 1.
    """

    kind: Literal["message", "tool"]
    place: str
    speaker: str
    number: int | None = None
    round: int | None = None
    words: str | None = None
    tool: str | None = None
    arguments: str | None = None
    result: str | None = None
    error: str | None = None
    model: str | None = None
    usage: TokenUsage = TokenUsage()
    seconds: float = 0.0

    def differs_in(self, other: "RunStep") -> DifferingField | None:
        """The first field in which it differs from a step of another run; usage and time don't count."""
        if (self.place, self.round) != (other.place, other.round):
            return "place"
        if self.speaker != other.speaker:
            return "speaker"
        if (self.kind, self.tool) != (other.kind, other.tool):
            return "tool"
        if self.arguments != other.arguments:
            return "arguments"
        if self.words != other.words:
            return "words"
        return "result" if (self.result, self.error) != (other.result, other.error) else None


class ComparedRun(JsonModel):
    """One of two runs: its id, how it has ended, and what it used. ``phase`` is None while it is open."""

    id: str
    phase: Phase | None = None
    stop_reason: StopReason | None = None
    error: str | None = None
    messages: int = 0
    tool_calls: int = 0
    turns: int | None = None
    usage: TokenUsage = TokenUsage()
    seconds: float = 0.0


class StepPair(JsonModel):
    """Two steps side by side; one of them is None where only the other run has a step. ``differs_in`` says in what."""

    a: RunStep | None = None
    b: RunStep | None = None
    differs_in: DifferingField | None = None


class Difference(JsonModel):
    """The difference between the runs ``a`` and ``b``.

    The first ``shared`` steps are the same rows of the journal in both, as after a fork. The ``equal`` steps after them
    have the same speakers, words, calls and results. ``differs_in`` says in what the next step differs; None if there
    is no difference. ``pairs`` are the steps from there on, side by side; ``truncated``: only the first ones of them.
    If neither run continues after the other one, but both after a third one, their steps include those of the runs that
    they fork, back to that one.
    """

    a: ComparedRun
    b: ComparedRun
    shared: int = 0
    equal: int = 0
    differs_in: DifferingField | None = None
    pairs: tuple[StepPair, ...] = ()
    truncated: bool = False

    @property
    def summary(self) -> str:
        """Where two runs diverge, in a few sentences."""
        texts = []
        if self.shared:
            texts.append(f"The first {_steps(self.shared)} the same rows of the journal.")
        if self.equal:
            texts.append(f"The {'next' if self.shared else 'first'} {_steps(self.equal)} equal.")
        if self.differs_in:
            number = self.shared + self.equal + 1
            texts.append(f"They diverge at step {number}: {REASONS[self.differs_in]}.")
        else:
            texts.append("There is no difference.")
        return " ".join(texts)


def _steps(count: int) -> str:
    return "step is" if count == 1 else f"{count} steps are"


MayRead = Callable[[RunHandle], Awaitable[bool]]
"""Says whether the steps of a run may be shown."""


async def compare_runs(
    client: Client,
    first: RunHandle,
    second: RunHandle,
    most: int | None = None,
    may_read: MayRead | None = None,
) -> Difference:
    """The difference between two runs, as far as they have come, with at most so many pairs.

    ``may_read`` says of a run that both come from, or of one between, whether its steps may be shown; if it is None,
    they always may. Raises Temporal's RPCError.
    """
    a = await _read(client, first)
    b = await _read(client, second)
    if (a.origin or b.origin) and a.origin not in b.rows and b.origin not in a.rows:
        a, b = await _after_common_run(client, (first, a), (second, b), may_read)
    return await asyncio.to_thread(difference, a, b, most)


async def _after_common_run(
    client: Client,
    a: "tuple[RunHandle, RecordedRun]",
    b: "tuple[RunHandle, RecordedRun]",
    may_read: MayRead | None,
) -> "tuple[RecordedRun, RecordedRun]":
    """Two runs after the steps of the runs that they fork, back to one that both come from.

    They are as before if there is none, or if one of those runs may not be read.
    """
    chains: list[list[tuple[str, str]]] = []
    read: dict[tuple[str, str], RecordedRun] = {}
    for handle, recorded in (a, b):
        run_id = handle.run_id or (await handle.describe()).run_id
        chain = [(origin.run, origin.run_id) for origin in await fork_chain(client, handle.id, run_id)]
        if chain:  # Temporal may have deleted the run meanwhile
            read[chain[0]] = recorded
        chains.append(chain)
    common = next((run for run in chains[0] if run in chains[1]), None)
    if common is None:
        return a[1], b[1]
    paths = [chain[: chain.index(common) + 1] for chain in chains]
    for run in [*paths[0], *paths[1]]:
        if run in read:
            continue
        workflow_id, first = run
        # The latest execution with that id may be a retry: what was forked is the failed run, which has other rows.
        handle = client.get_workflow_handle(workflow_id, run_id=await last_execution(client, workflow_id, first))
        if may_read and not await may_read(handle):
            return a[1], b[1]
        read[run] = await _read(client, handle)
    conversations: list[RecordedRun] = []
    for path in paths:
        conversation = read[common]
        for run in reversed(path[:-1]):
            conversation = read[run].after(conversation)
        conversations.append(conversation)
    return conversations[0], conversations[1]


@dataclass
class RecordedRun:
    """The steps of a run, and the rows of the journal that it has written and at which it began.

    ``rows`` has for each row the number of steps up to it. ``origin`` is the row after which the conversation of the
    run continues; empty if it begins.
    """

    run: ComparedRun
    steps: list[RunStep] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    origin: str = ""

    def after(self, other: "RecordedRun") -> "RecordedRun":
        """The run after the steps of another one, if it continues after a row of that."""
        count = other.rows.get(self.origin)
        if count is None:
            return self
        rows = {row: number for row, number in other.rows.items() if number <= count}
        rows |= {row: count + number for row, number in self.rows.items()}
        return RecordedRun(self.run, [*other.steps[:count], *self.steps], rows, other.origin)


def difference(a: RecordedRun, b: RecordedRun, most: int | None = None) -> Difference:
    """The difference between two runs that were read, with at most so many pairs."""
    # A run that continues from a row of the other one has that row's steps in common with it, without repeating them.
    if b.origin in a.rows:
        b = b.after(a)
    else:
        a = a.after(b)
    shared = max((count for row, count in a.rows.items() if b.rows.get(row) == count), default=0)
    a_steps = a.steps[shared:]
    b_steps = b.steps[shared:]
    equal = 0
    for one, other in zip(a_steps, b_steps, strict=False):
        if one.differs_in(other):
            break
        equal += 1
    following = _side_by_side(a_steps[equal:], b_steps[equal:])
    pairs = tuple(islice(following, most))
    return Difference(
        a=a.run,
        b=b.run,
        shared=shared,
        equal=equal,
        differs_in=pairs[0].differs_in if pairs else None,
        pairs=pairs,
        truncated=next(following, None) is not None,
    )


def _side_by_side(a: Sequence[RunStep], b: Sequence[RunStep]) -> Iterator[StepPair]:
    """Steps in their order, those of the same speaker, or of the same tool of it, beside each other."""
    a_left, b_left = len(a), len(b)
    for start in range(0, max(len(a), len(b)), ALIGNED):
        for one, other in _aligned(a[start : start + ALIGNED], b[start : start + ALIGNED]):
            a_left -= one is not None
            b_left -= other is not None
            if one and other:
                yield StepPair(a=one, b=other, differs_in=one.differs_in(other))
            else:
                yield StepPair(a=one, b=other, differs_in="additional" if (a_left if other else b_left) else "end")


def _aligned(a: Sequence[RunStep], b: Sequence[RunStep]) -> Iterator[tuple[RunStep | None, RunStep | None]]:
    """The same of a few steps."""
    matcher = SequenceMatcher(None, [*map(_role, a)], [*map(_role, b)], autojunk=False)
    for _, a_from, a_to, b_from, b_to in matcher.get_opcodes():
        yield from zip_longest(a[a_from:a_to], b[b_from:b_to])


def _role(step: RunStep) -> tuple[str, str, str | None]:
    return step.speaker, step.kind, step.tool


class _Recorded(NamedTuple):
    """What a run event tells: the events of the stream, the row that it has written, and where the run began."""

    events: tuple[Event, ...]
    row: str
    origin: Head | None


async def _read(client: Client, handle: RunHandle) -> RecordedRun:
    """Reads a run and its child runs as far as they exist."""
    tree = RunTree[_Recorded](client, handle, _items_of, wait=False, depth_first=True)
    recorder = _Recorder(handle.id)
    async for read in tree.read():
        recorder.add(read.item)
    return recorder.finished()


def _items_of(run: RunInfo) -> Callable[[RunEvent], Iterable[_Recorded]]:
    translator = EventTranslator(run)

    def build(run_event: RunEvent) -> Iterator[_Recorded]:
        origin: Head | None = None
        row = ""
        match run_event:
            case CallEnded(result=Pinned(before=Head() as before)) if run.parent is None:
                origin = before
            case CallEnded(result=ForkedRun() as forked):
                origin = forked.place
            case CallEnded(
                result=AskModelResult(head=head)
                | UseToolResult(head=head)
                | PerformResult(head=head)
                | (Head() as head)
            ):
                row = head.id
        yield _Recorded(tuple(translator.translate(run_event)), row, origin)

    return build


class _Recorder:
    """Makes steps from the events of a run and its child runs."""

    def __init__(self, run_id: str) -> None:
        self._recorded = RecordedRun(ComparedRun(id=run_id))
        self._calls: dict[tuple[str, str], ToolCalledEvent] = {}
        self._answers: dict[tuple[str, str], list[ModelAnsweredEvent]] = {}
        self._origin = Head()
        self._usage = TokenUsage()
        self._started: datetime | None = None
        self._ended: RunEndedEvent | None = None

    def add(self, item: _Recorded) -> None:
        """Adds what one run event tells."""
        for event in item.events:
            self._started = self._started or event.at
            self._add_event(event)
        if item.origin and item.origin.depth >= self._origin.depth:  # the runs of a fork begin at rows of their own
            self._origin = item.origin
            self._recorded.origin = item.origin.id
        if item.row:
            self._recorded.rows[item.row] = len(self._recorded.steps)

    def _add_event(self, event: Event) -> None:
        steps = self._recorded.steps
        place = event.run.removeprefix(self._recorded.run.id).lstrip("/")
        self._usage += usage_of(event)
        match event:
            case ModelAnsweredEvent():
                self._answers.setdefault((event.run, event.speaker), []).append(event)
            case ToolCalledEvent():
                self._calls[event.run, event.call] = event
            case ToolReturnedEvent() | ToolFailedEvent():
                called = self._calls.pop((event.run, event.call), None)
                steps.append(
                    RunStep(
                        kind="tool",
                        place=place,
                        speaker=event.speaker,
                        tool=event.tool,
                        arguments=called.arguments if called else None,
                        result=event.text if isinstance(event, ToolReturnedEvent) else None,
                        error=(event.error or "canceled") if isinstance(event, ToolFailedEvent) else None,
                        usage=TokenUsage(tool_calls=1),
                        seconds=event.seconds,
                    )
                )
            case MessageEvent():
                answers = self._answers.pop((event.run, event.name), [])
                usage = TokenUsage()
                for answer in answers:
                    usage += answer.usage
                steps.append(
                    RunStep(
                        kind="message",
                        place=place,
                        speaker=event.name,
                        number=event.number,
                        round=event.round,
                        words=event.text,
                        model=answers[-1].model if answers else None,
                        usage=usage,
                        seconds=round(sum(answer.seconds for answer in answers), 3),
                    )
                )
            case RunEndedEvent() if not place:
                self._ended = event

    def finished(self) -> RecordedRun:
        """The run, as far as it was read."""
        recorded = self._recorded
        started = self._started or datetime.now(UTC)
        ended = self._ended
        recorded.run = ComparedRun(
            id=recorded.run.id,
            phase=ended.phase if ended else None,
            stop_reason=ended.stop_reason if ended else None,
            error=ended.error if ended else None,
            messages=sum(step.kind == "message" for step in recorded.steps),
            tool_calls=sum(step.kind == "tool" for step in recorded.steps),
            turns=ended.turns if ended else None,
            usage=ended.usage if ended else self._usage,
            seconds=round(((ended.at if ended else datetime.now(UTC)) - started).total_seconds(), 3),
        )
        return recorded
