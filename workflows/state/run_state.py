"""The state that all parts of a run share: stop request, inbox, decisions, session, and where activities run."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.common import Priority

from ...contracts.control_messages import Pause, SteerRequest
from ...contracts.decisions import PendingDecision, shown
from ...contracts.errors import Outage
from ...contracts.inputs import InboxState, QueryInput, TurnInput
from ...contracts.message import Message, latest_within
from ...contracts.requests import TaskQueues
from ...contracts.status import Status
from ...contracts.text import format_time, truncate
from ...contracts.turn import TurnResult
from ...resources.base import JsonObject
from .constants import LEAVE_UNREAD, MAX_CONCURRENT_ACTIVITIES
from .decisions import Decisions, recorded_wait
from .outages import Outages
from .run_trace import RunTrace
from .stopping import StopState


class Inbox:
    """Messages from people to a run, until the next model call reads them, and the pause of the run.

    The inbox of an ending run is closed: no member would read later messages, which signals may still bring.
    """

    def __init__(self) -> None:
        self.pause: Pause | None = None
        self.is_closed = False
        self._messages: list[SteerRequest] = []
        self._late: list[SteerRequest] | None = None

    def put(self, request: SteerRequest) -> None:
        """Adds the message of a person."""
        self._messages.append(request)

    @property
    def waiting(self) -> tuple[Message, ...]:
        """The unread messages."""
        return tuple(request.message for request in self._messages)

    def take(self) -> list[SteerRequest]:
        """Removes and returns all messages, with their ids."""
        messages = self._messages
        self._messages = []
        return messages

    def drain(self) -> list[Message]:
        """Takes all messages out; the caller adds them to the conversation."""
        messages = self.take()
        if self._late is not None:
            self._late += messages
        return [request.message for request in messages]

    def keep(self, messages: Sequence[SteerRequest] = ()) -> None:
        """From now on, messages are kept for a retry: nobody answers them, as a failure ends the run.

        ``messages`` are those that were taken out already.
        """
        self._late = [*(self._late or ()), *messages]

    @property
    def undelivered(self) -> InboxState | None:
        """The messages that a retry of the run delivers."""
        waiting = (*(self._late or ()), *self._messages)
        return InboxState(waiting=waiting) if waiting else None

    def restore_messages(self, state: InboxState | None) -> None:
        """Restores the messages that a failed run has not delivered, before those of this run."""
        if state:
            self._messages = [*state.waiting, *self._messages]

    @property
    def state(self) -> InboxState | None:
        """The state for the next run at continue-as-new."""
        if not (self.pause or self._messages):
            return None
        return InboxState(pause=self.pause, waiting=tuple(self._messages))

    def restore(self, state: InboxState | None) -> None:
        """Restores the state of the previous run, with its messages before those of this one."""
        if state:
            self.pause = state.pause
        self.restore_messages(state)


class SessionState:
    """The session of a run: named JSON values."""

    def __init__(self) -> None:
        self.values: JsonObject = {}

    def update(self, changes: JsonObject) -> JsonObject:
        """Changes values, removes those that are set to null, and returns all."""
        merged = {**self.values, **changes}
        self.values = {name: value for name, value in merged.items() if value is not None}
        return self.values


SHOWN_CHARACTERS = 8_000
"""Characters of a conversation in the current details."""

SHOWN_DECISIONS = 20
"""Decisions, and runs, in the current details."""


class CurrentDetails:
    """The current details of a run in Temporal's UI."""

    def __init__(self) -> None:
        self._text = ""
        self._pause = ""
        self._question = ""
        self._waits = ""
        self._outages = ""

    def show_question(self, question: str) -> None:
        """Shows the question of the run above its messages."""
        self._question = f"> {' '.join(question.split())}\n\n" if question else ""
        self._set(self._text)

    def show_turn(self, name: str, turn: TurnResult, max_turns: int | None = None) -> None:
        """Shows the messages of a team or an agent so far."""
        count = f"{turn.turns} of {max_turns}" if max_turns else f"{turn.turns}"
        end = f" · {turn.stop_reason}" if turn.stop_reason != "completed" else ""
        last = turn.messages[-1].round if turn.messages else None
        place = f"round {last}" if last else f"turn {count}"
        title = f"### {name} · {place}{end} · {turn.usage.total_tokens} tokens"
        failure = [f"**{turn.failure.type}** {turn.failure.message}"] if turn.failure else []
        messages = [_as_markdown(message) for message in latest_within(turn.messages, SHOWN_CHARACTERS)]
        self._set("\n\n".join((title, *messages, *failure)))

    def show_status(self, status: Status) -> None:
        """Shows the status of a query so far."""
        title = f"### {status.token_usage.total_tokens} tokens"
        targets = (
            f"- **{response.target.type}/{response.target.name}** {response.status} {response.error or ''}"
            for response in status.responses
        )
        self._set("\n".join((title, *targets, "", truncate(status.message, SHOWN_CHARACTERS))))

    def show_pause(self, pause: Pause | None) -> None:
        """Shows above everything else that the run is paused, until it is resumed."""
        by = f" by {pause.by}" if pause and pause.by else ""
        self._pause = f"**Paused{by} since {pause.since}**\n\n" if pause else ""
        self._set(self._text)

    def show_decisions(self, pending: Sequence[PendingDecision], runs: Sequence[str]) -> None:
        """Shows the pending decisions of the run, and the child runs that wait for a person."""
        of_run = (_waiting_line(decision) for decision in pending[:SHOWN_DECISIONS])
        of_children = (f"- **waits for a person** in the run `{run}`" for run in runs[:SHOWN_DECISIONS])
        self._waits = "".join(f"{line}\n" for line in (*of_run, *of_children)) + ("\n" if pending or runs else "")
        self._set(self._text)

    def show_outages(self, outages: Sequence[Outage], runs: Sequence[str]) -> None:
        """Shows the outages that calls of the run wait for, and the child runs that wait for such ones."""
        of_run = (_outage_line(outage) for outage in outages[:SHOWN_DECISIONS])
        of_children = (f"- **waits for a server or a quota** in the run `{run}`" for run in runs[:SHOWN_DECISIONS])
        self._outages = "".join(f"{line}\n" for line in (*of_run, *of_children)) + ("\n" if outages or runs else "")
        self._set(self._text)

    def _set(self, text: str) -> None:
        self._text = text
        workflow.set_current_details(self._pause + self._waits + self._outages + self._question + text)


def _outage_line(outage: Outage) -> str:
    if outage.is_quota:
        return (
            f"- **waits for a quota**: {outage.call}: {truncate(outage.error, 500)} (since {format_time(outage.since)})"
        )
    since = f"since {format_time(outage.since)}, {outage.attempts} attempts"
    return f"- **waits for a server**: {outage.call}: {truncate(outage.error, 500)} ({since})"


def _waiting_line(pending: PendingDecision) -> str:
    if pending.kind == "question":
        return f"- **waits for {pending.speaker}** `{pending.id}`: {truncate(pending.question or '', 500)}"
    arguments = truncate(pending.arguments or "", 500)
    if pending.kind == "client_tool":
        return f"- **waits for its client** `{pending.id}`: {pending.speaker} calls `{pending.tool}` with `{arguments}`"
    if pending.kind == "budget":
        return f"- **waits for approval** `{pending.id}`: {pending.question}; approval grants `{arguments}`"
    return f"- **waits for approval** `{pending.id}`: {pending.speaker} calls `{pending.tool}` with `{arguments}`"


def _as_markdown(message: Message) -> str:
    place = f"round {message.round} · " if message.round else ""
    speaker = f"{place}**{message.name or message.role}**" + (f" ({message.model})" if message.model else "")
    calls = "".join(f"\n- calls `{call.name}` with `{truncate(call.arguments, 200)}`" for call in message.tool_calls)
    return f"{speaker}: {truncate(message.content, 2_000)}{calls}"


class RunState:
    """The shared state of one run.

    ``task_queues``, ``max_outage`` (the longest wait for the end of an outage) and the beginning of the ``question``
    are set once the run is pinned;
    ``searchable`` as well: the server has Baton's search attributes. ``started_at`` is when the first run of the chain
    began. With ``gives_up``, calls do not wait for the end of an outage. ``is_child`` and ``kind`` (of its target): a
    run of Baton has started it; known once ``begin`` was called.
    """

    def __init__(self) -> None:
        self.stop = StopState()
        self.inbox = Inbox()
        self.session = SessionState()
        self.details = CurrentDetails()
        self.task_queues = TaskQueues()
        self.trace = RunTrace()
        self.decisions = Decisions(self.stop, self.trace)
        self.outages = Outages()
        self.gives_up = False
        self.is_child = False
        self.kind: str | None = None
        self.searchable = False
        self.max_outage = timedelta(days=1)
        self.activity_slots = asyncio.Semaphore(MAX_CONCURRENT_ACTIVITIES)
        self.started_at = workflow.info().start_time
        self.question = ""

    def begin(self, run_input: QueryInput | TurnInput) -> None:
        """Applies the input of the run, before any signal or update."""
        self.session.update(run_input.session)
        if isinstance(run_input, TurnInput):
            self.is_child = run_input.thread is not None
            self.kind = run_input.kind
            self.stop.restore(run_input.stop)
            self.inbox.pause = run_input.pause

    def read_at_end(self, patch: str = LEAVE_UNREAD) -> list[Message]:
        """Takes the messages that nobody has read when a turn has ended; the caller adds them to the conversation.

        A child run leaves them to its next speaker, and in the end to its parent: its own conversation may be read by
        nobody any more.
        """
        if self.is_child and self.inbox.waiting and workflow.patched(patch):
            return []
        return self.inbox.drain()

    async def ready(self, *, continues: bool) -> None:
        """Waits while the run is paused. ``continues`` is that of ``StopState.wait``.

        Raises ActivityInterrupted if the run is to stop now, and ContinueAsNew.
        """
        if self.inbox.pause and not self.stop.is_requested:
            await self._resumed(self.inbox.pause, continues=continues)
        self.stop.checkpoint()

    async def _resumed(self, pause: Pause, *, continues: bool) -> None:
        info = workflow.info()
        paused_at = datetime.fromisoformat(pause.since)
        known = info.continued_run_id is not None and paused_at < info.start_time
        since = paused_at if known else workflow.now()
        with (
            recorded_wait("pause", since, known=known) as wait,
            self.trace.inside(self.trace.new_wait("pause", since=since)),
        ):
            self.trace.report()
            await self.stop.wait(lambda: not self.inbox.pause, continues=continues)
            wait.outcome = "stopped" if self.inbox.pause else "resumed"

    def with_requests(self, status: Status) -> Status:
        """The status of an open run with people's requests (pause, session, unread messages) and all it waits for."""
        return status.with_requests(
            self.inbox.pause,
            self.session.values,
            self.inbox.waiting,
            shown(self.decisions.pending),
            self.decisions.waiting_below,
            self.outages.own,
            self.outages.below,
        )

    @property
    def priority(self) -> Priority:
        """The priority of the run's activities and children; unset fields are inherited from the run.

        A root run has them from ``pin``, and its children inherit them. Before that, and in runs that older workers
        have pinned, the fairness key is the end of the run id.
        """
        info = workflow.info()
        fairness_key = None if info.priority.fairness_key else info.first_execution_run_id[-8:]
        return Priority(
            priority_key=self.task_queues.priority,
            fairness_key=self.task_queues.tenant or fairness_key,
            fairness_weight=self.task_queues.weight,
        )
