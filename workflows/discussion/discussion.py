"""The discussion of a team: its members' turns in sequence, and the conditions evaluated between them."""

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from temporalio import workflow

from ...contracts.control_messages import SteerRequest
from ...contracts.errors import Failure, MaxTurnsReached
from ...contracts.inputs import State, TeamState
from ...contracts.message import Head, Message, TokenUsage, last_spoken
from ...contracts.panel import SpeakerBrief
from ...contracts.plan import AgentPlan, MemberPlan, TeamPlan
from ...contracts.requests import Bookmark, ConversationItem, EvaluateRequest, EvaluateResult, Pinned
from ...contracts.text import truncate
from ...contracts.turn import StopReason, Thread, TurnResult
from ...observability.metrics import TURNS
from ...resources.team import NoProgress
from ..calls import effects
from ..calls.children import ChildWorkflows
from ..calls.traces import team_span
from ..state.constants import COMPARE_SPOKEN, LEAVE_UNREAD_IN_TEAMS, STALL_SIMILARITY, STALL_WORDS
from ..state.decisions import record
from ..state.run_state import RunState
from ..state.stopping import ActivityFailed, ActivityInterrupted, ContinueAsNew, should_continue_as_new, uncancelled
from ..state.telling import tell
from .agent_turn import AgentTurn
from .member_turn import MemberTurn, TeamContext
from .members import MEMBER_KINDS, AgentRun, FunctionTurn, RunningMember

_UNSPACED = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Tibetan, Burmese, Khmer
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9d"  # Japanese syllables
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Chinese characters
)
"""The characters of languages that put no spaces between words. Punctuation is not among them."""

_RUNS = re.compile(f"([{_UNSPACED}]+)|[^\\W{_UNSPACED}]+")


class StallDetection:
    """Detects repetition from the words of every member's latest texts, and counts consecutive repeated turns."""

    def __init__(
        self, rule: NoProgress | None, texts: Mapping[str, Sequence[str]] = MappingProxyType({}), repeated: int = 0
    ) -> None:
        self._rule = rule
        self.repeated = repeated
        self.texts = {speaker: tuple(speaker_texts) for speaker, speaker_texts in texts.items()}

    def is_stalled(self, speaker: str, text: str) -> bool:
        """Adds a text; whether as many consecutive turns as the rule's window were repetitions."""
        if self._rule is None:
            return False
        words = dict.fromkeys(itertools.islice(_words(text.casefold()), STALL_WORDS))
        before = self.texts.get(speaker, ())
        self.repeated = self.repeated + 1 if any(_similar(words, earlier.split()) for earlier in before) else 0
        self.texts[speaker] = (*before, " ".join(words))[-self._rule.window :]
        return self.repeated >= self._rule.window


def _words(text: str) -> Iterator[str]:
    """The words of a text; in languages without spaces, all pairs of adjacent characters."""
    for run in _RUNS.finditer(text):
        if run[1]:
            yield from (run[0][start : start + 2] for start in range(max(1, len(run[0]) - 1)))
        else:
            yield run[0]


def _similar(one: Collection[str], other: Collection[str]) -> bool:
    common = sum(word in other for word in one)
    return common >= STALL_SIMILARITY * (len(one) + len(other) - common)


class TeamResult:
    """The result of a team's discussion so far; ``max_turns`` is the limit of its turns, if there is one."""

    def __init__(self, plan: TeamPlan, run: RunState, so_far: TurnResult, max_turns: int | None = None) -> None:
        self._plan = plan
        self._run = run
        self.so_far = so_far
        self.max_turns = max_turns

    @property
    def is_open(self) -> bool:
        """Whether another member may speak: nothing has ended the team, and nothing has failed."""
        turn = self.so_far
        return not (turn.ended or turn.failure or turn.stop_reason != "completed" or self._run.stop.is_requested)

    def add_turn(self, member: str, turn: TurnResult) -> None:
        """Adds a turn that followed the conversation so far; its failure fails the team."""
        self.move_to(turn.head)
        self.add_parallel_turns(turn)
        if turn.failure:
            self.end_by(turn.failure.in_turn(member, self.so_far.turns))

    def add_parallel_turns(self, *turns: TurnResult) -> None:
        """Adds turns whose messages are already in the conversation; their failures do not fail the team."""
        self.so_far = self.so_far.followed_by(*turns)
        self.add_member_failures(*(failure for turn in turns for failure in turn.member_failures))
        if above := next((turn.above for turn in turns if turn.outer_budget and not turn.failure), None):
            self.end_by(above)
        self._run.details.show_turn(self._plan.name, self.so_far, self.max_turns)

    def add_member_failures(self, *failures: Failure) -> None:
        """Adds failures of members that do not fail the team; only the first ones are stored."""
        if failures:
            self.so_far = self.so_far.with_member_failures(failures)

    def add_usage(self, usage: TokenUsage) -> None:
        """Adds the usage of a call that was no member's turn."""
        self.so_far = self.so_far.with_usage(self.so_far.usage + usage)

    def add_message(self, message: Message) -> None:
        """Adds a message that is already in the conversation and does not count as a turn."""
        self.so_far = self.so_far.with_message(message)

    def move_to(self, head: Head) -> None:
        """The conversation has grown up to ``head``."""
        self.so_far = self.so_far.at(head)

    def terminate(self) -> None:
        """Ends the team as the tool ``terminate`` of a member does."""
        self.so_far = self.so_far.terminated()

    def fail(self, failure: Failure) -> None:
        """Ends the team with a failure; the first one counts."""
        self.so_far = self.so_far.because_of(self.so_far.failure or failure)

    def end_by(self, failure: Failure) -> None:
        """Ends the team with a failure, or as the reached budget specifies."""
        if failure.budget and not self.so_far.failure:
            self.so_far = self.so_far.ended_by(failure, self._plan.id)
        else:
            self.fail(failure)

    def stop(self, reason: StopReason, note: str | None = None) -> None:
        """Ends the team for a reason that is no failure."""
        self.so_far = self.so_far.because(reason, note)

    def reach_max_turns(self) -> None:
        """Ends the team at its turn limit: an error, unless ``onMaxTurns: complete`` (ARK: team strategies)."""
        text = f"team {self._plan.strategy} MaxTurns reached {self._plan.name}"
        if self._plan.bounded_by_default:
            text = f"{text}: nothing else limits the run, so it ends after {self.so_far.turns} turns"
        failure = None if self._plan.on_max_turns == "complete" else MaxTurnsReached(text).as_failure()
        self.so_far = self.so_far.because("max_turns").because_of(failure)

    def set_answer(self, text: str) -> None:
        """Makes ``text`` the answer of the team, instead of the last message."""
        self.so_far = self.so_far.with_answer(truncate(text))

    def final(self) -> TurnResult:
        """The whole discussion as one turn, with the reason why it stopped."""
        return self.so_far.because(self._reason()).of_run(self._run.stop.note)

    def _reason(self) -> StopReason:
        if self.so_far.stop_reason != "completed":
            return self.so_far.stop_reason
        if self.so_far.failure:
            return "failed"
        if self.so_far.ended:
            return "terminated"
        return self._run.stop.reason or "completed"


T = TypeVar("T")


class Discussion:
    """A team's discussion in progress.

    A strategy chooses the next speaker from ``members``, ``last_speaker`` (an index), ``turns`` (the number of turns
    taken) and ``strategy_state`` alone, so that it can be continued after any turn.
    """

    def __init__(
        self,
        pinned: Pinned,
        run: RunState,
        children: ChildWorkflows,
        state: TeamState | None = None,
    ) -> None:
        plan = pinned.plan
        assert isinstance(plan, TeamPlan)
        state = state or TeamState(kind="team", so_far=TurnResult(head=pinned.thread.head, turns=0))
        self.plan = plan
        self.members = plan.members
        self.run = run
        self.result = TeamResult(plan, run, state.so_far, state.turns)
        self.last_speaker = state.last_speaker
        self._silent = state.silent
        self.evaluated = state.verdict
        self.strategy_state = dict(state.strategy_state)
        self.context = TeamContext(plan.name, run, children)
        self._member = state.interrupted_member
        self._turn: AgentTurn | None = None
        self._interrupted = state.interrupted_turn
        self._pinned = pinned
        self._unevaluated = state.unevaluated
        self._before_failure: TeamState | None = None
        self._stall = StallDetection(plan.no_progress, state.said, state.repeated)

    @property
    def turns(self) -> int:
        """The number of turns taken."""
        return self.result.so_far.turns

    @property
    def max_turns(self) -> int | None:
        """The turn limit; None without a limit."""
        return self.result.max_turns

    @max_turns.setter
    def max_turns(self, turns: int | None) -> None:
        self.result.max_turns = turns

    @property
    def handed_to(self) -> int | None:
        """The member to which the last speaker has transferred the conversation."""
        return self.result.so_far.handoff

    @property
    def thread(self) -> Thread:
        """The conversation so far."""
        return self._pinned.thread.at(self.result.so_far.head)

    @property
    def state(self) -> TeamState:
        """The state from which a continued run resumes the discussion, or a retry one that failed."""
        return self._before_failure or self._state()

    def keep_state(self, unread: Sequence[SteerRequest] = ()) -> None:
        """Keeps the state before a failed or interrupted turn or call: what follows only ends the discussion.

        ``unread`` are the messages of people that this turn has taken, for a retry.
        """
        if self._before_failure is None:
            self._before_failure = self._state()
            self.run.inbox.keep(unread)

    def _state(self) -> TeamState:
        return TeamState(
            kind="team",
            so_far=self.result.so_far,
            turns=self.max_turns,
            last_speaker=self.last_speaker,
            silent=self._silent,
            verdict=self.evaluated,
            said=self._stall.texts,
            repeated=self._stall.repeated,
            strategy_state=self.strategy_state,
            interrupted_member=self._member,
            interrupted_turn=self._turn.state if self._turn else self._interrupted,
            unevaluated=self._unevaluated,
        )

    def can_continue(self) -> bool:
        """Whether another member may speak."""
        return self.result.is_open

    @property
    def resumes(self) -> bool:
        """Whether the previous run continued as new in the middle of the next turn, which is finished in any case."""
        return self._interrupted is not None

    async def restore(self) -> None:
        """Finishes the turn during which the previous run continued as new, or the evaluation that failed it."""
        if self._unevaluated:
            await self.evaluate(self._unevaluated)
        elif self._member is not None:
            await self.run_member(self._member)
        elif self.turns:
            self.run.details.show_turn(self.plan.name, self.result.so_far, self.max_turns)

    async def read_inbox(self) -> None:
        """Waits while the run is paused, and adds people's messages to the conversation."""
        await self.run.ready(continues=True)
        if messages := self.run.inbox.drain():
            await self.append(messages)

    async def _read_left_messages(self) -> None:
        """Waits while the run is paused, and adds to the conversation what the last turn of a child run has left.

        So they are shown as read once the next member has begun, as in a root run, which adds them after each turn.
        """
        if self.run.is_child and self.run.inbox.waiting and workflow.patched(LEAVE_UNREAD_IN_TEAMS):
            await self.read_inbox()
        else:
            await self.run.ready(continues=True)

    async def run_member(self, index: int) -> None:
        """Lets one member take its turn, adds its messages, and evaluates the conditions (ARK: teams).

        Between two turns, between the steps of an agent's turn, and while it waits, a long run continues as new.
        """
        self._member = index
        member = self.members[index]
        await self.attempt(self._read_left_messages() if not self.resumes else self.run.ready(continues=True))
        if not (self.can_continue() or self.resumes):
            return
        turn = MemberTurn(member.name, self.turns + 1, self.max_turns, self.thread)
        result = await self.run_turn(member, turn)
        self._member = None
        self.result.add_turn(member.name, result)
        self.last_speaker = index
        # What a panel keeps out of the conversation is not said there either, though it is the answer of its turn.
        self._silent = not (result.messages and result.message)
        await self._evaluate(index, member.name, result)
        self.continue_as_new_if_long()

    async def run_turn(self, member: MemberPlan, turn: MemberTurn, *, beside: bool = False) -> TurnResult:
        """The result of a member's turn. A turn that failed or was stopped before it began has no messages; ``unread``
        are those of people that it has added to the conversation, where nobody has answered them.

        If other members speak at the same time (``beside``), an agent takes its turn in a run of its own, which can
        continue as new.
        """
        running: RunningMember
        if beside and isinstance(member, AgentPlan):
            running = AgentRun(self._pinned.for_member(member, turn.thread), self.context, turn)
        else:
            running = MEMBER_KINDS[member.kind](member, self.context, turn.resumed(self._interrupted))
        began = None if self._interrupted else workflow.now()
        if began:
            tell("turn began", {"kind": member.kind, "member": turn.name, "turn": turn.number})
        self._interrupted = None
        self._turn = running if isinstance(running, AgentTurn) else None

        def begun() -> TurnResult:
            return running.begun if isinstance(running, FunctionTurn) else TurnResult(head=turn.thread.head, turns=0)

        try:
            result = await running.execute()
        except (ActivityInterrupted, asyncio.CancelledError):
            result = begun().stopped(self.run.stop.interruption)
        except ActivityFailed as failed:
            result = begun().failed(failed.failure)
        if result.is_unfinished and not beside:
            self.keep_state(result.unread)
        self._turn = None
        record(TURNS, kind=member.kind, outcome=result.stop_reason)
        tell(
            "turn ended",
            {
                "kind": member.kind,
                "member": turn.name,
                "turn": turn.number,
                "outcome": result.stop_reason,
                "error": result.failure.type if result.failure else None,
                "tokens": result.usage.total_tokens,
                "cost": result.usage.cost,
                "seconds": (workflow.now() - began).total_seconds() if began else None,
            },
        )
        return result

    def continue_as_new_if_long(self) -> None:
        """Raises ContinueAsNew between two turns of a long run."""
        if self.can_continue() and should_continue_as_new():
            raise ContinueAsNew

    async def _evaluate(self, index: int, speaker: str, turn: TurnResult) -> None:
        """Checks for a stall, and evaluates the conditions, after a turn."""
        if self.can_continue() and self._is_stalled(speaker, turn):
            self._on_stall()
        conditional = any(edge.conditional for edge in self.plan.edges if edge.from_ == index)
        if self.can_continue() and (self.plan.conditional or conditional):
            await self.evaluate(self.evaluation(index))

    def _is_stalled(self, speaker: str, turn: TurnResult) -> bool:
        if self.plan.no_progress is None or not turn.messages:
            return False
        # A turn may end with the result of a tool, such as that of a transfer, which says the same each time.
        ends_with_tool = turn.messages[-1].role == "tool" and any(each.tool_calls for each in turn.messages)
        if ends_with_tool and workflow.patched(COMPARE_SPOKEN):
            said = last_spoken(turn.messages)
            return said is not None and self._stall.is_stalled(speaker, said.content)
        return self._stall.is_stalled(speaker, turn.messages[-1].content)

    def evaluation(self, index: int | None = None, brief: SpeakerBrief | None = None) -> EvaluateRequest:
        """The request to evaluate a team's conditions: after the turn of the member at ``index``, or with a ``brief``,
        after the round of a panel, in whose transcript all answers are messages."""
        return EvaluateRequest(
            thread=self.thread,
            team=self.plan.id,
            member_index=index,
            turn=self.turns,
            tokens=self.result.so_far.usage.total_tokens,
            elapsed=(workflow.now() - self.run.started_at).total_seconds(),
            brief=brief,
            silent=self._silent and not brief,
            answer=None if brief else self.result.so_far.answer,
            session={} if brief else self.run.session.values,
        )

    async def choose(self, candidates: Sequence[int]) -> int | None:
        """The candidate that the function chooses which is the team's selector; None if it ends the team."""
        request = self.evaluation(self.last_speaker)
        await self.evaluate(request.model_copy(update={"candidates": tuple(candidates), "turn": self.turns + 1}))
        return self.evaluated.member if self.can_continue() else None

    async def evaluate(self, request: EvaluateRequest) -> None:
        """Evaluates the conditions, and ends the discussion if ``terminateWhen`` is true."""
        self._unevaluated = request
        self.evaluated = await self.attempt(effects.evaluate(self.run, request)) or EvaluateResult()
        self._unevaluated = None
        if self.evaluated.ends:
            self.result.stop("condition")

    def _on_stall(self) -> None:
        rule = self.plan.no_progress
        text = f"{self._stall.repeated} turns in a row repeat earlier messages"
        if rule and rule.action == "stop":
            self.result.stop("no_progress", text)
        else:
            workflow.logger.warning("team %s makes no progress: %s", self.plan.name, text)

    async def attempt(self, call: Coroutine[Any, Any, T]) -> T | None:
        """The result of a call; None if it fails, which fails the discussion, or if the run is to stop."""
        try:
            return await call
        except ActivityFailed as failed:
            self.result.add_usage(failed.usage)
            self.keep_state()
            self.result.end_by(failed.failure)
        except (ActivityInterrupted, asyncio.CancelledError):
            self.keep_state()
            workflow.logger.info("stopped between two turns")
        return None

    async def append(self, items: Sequence[ConversationItem], bookmark: Bookmark | None = None) -> None:
        """Appends items to the conversation, even during cancellation."""
        head = self.result.so_far.head
        task = asyncio.create_task(effects.append(self.run, head, tuple(items), bookmark))
        try:
            self.result.move_to(await uncancelled(task))
        except ActivityFailed as failed:
            self.result.fail(failed.failure)


async def reach_max_turns(team: Discussion) -> None:
    """Ends a team at its turn limit; in ARK's dialect a normal end adds a system message (ARK: today's dialect)."""
    team.keep_state()  # a fork may have a higher limit
    if team.plan.dialect == "ark" and team.plan.on_max_turns == "complete":
        text = f"Team conversation reached maximum turns limit ({team.turns})"
        message = Message(role="system", content=text)
        await team.append([message])
        team.result.add_message(message)
    team.result.reach_max_turns()


Strategy = Callable[[Discussion], Awaitable[None]]
"""Runs the members of a team, in the strategy's order, until the discussion can no longer continue."""


class TeamTurn:
    """A team's discussion under a strategy."""

    def __init__(
        self,
        strategy: Strategy,
        pinned: Pinned,
        run: RunState,
        children: ChildWorkflows,
        state: State | None,
    ) -> None:
        assert isinstance(pinned.plan, TeamPlan)
        assert state is None or isinstance(state, TeamState)
        self._strategy = strategy
        self._run = run
        self._plan = pinned.plan
        self._since = run.started_at if state else None
        self._discussion = Discussion(pinned, run, children, state)

    @property
    def state(self) -> TeamState:
        """The state from which a continued run resumes."""
        return self._discussion.state

    @property
    def so_far(self) -> TurnResult:
        """The result so far."""
        return self._discussion.result.so_far

    @property
    def next_turn(self) -> int:
        """The turn in which a message received now is read at the latest."""
        return self._discussion.turns + 2

    async def execute(self) -> TurnResult:
        """Runs the discussion to its end; unread messages of people join the conversation."""
        span = team_span(self._run, self._plan, self._since)
        with self._run.trace.inside(span):
            await self._discussion.restore()
            await self._strategy(self._discussion)
            if messages := self._run.read_at_end():
                await self._discussion.append(messages)
            result = self._discussion.result.final()
            span.finish(result.stop_reason, result.failure)
        return result
