"""The discussion of a team: its members' turns one after the other, and the conditions evaluated between them."""

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from temporalio import workflow

from ...contracts.errors import Failure, MaxTurnsReached
from ...contracts.inputs import AgentState, State, TeamState
from ...contracts.message import Head, Message, TokenUsage
from ...contracts.panel import SpeakerBrief
from ...contracts.plan import MemberPlan, TeamPlan
from ...contracts.requests import Bookmark, ConversationItem, EvaluateRequest, EvaluateResult, Pinned
from ...contracts.text import truncate
from ...contracts.turn import StopReason, Thread, TurnResult
from ...observability.metrics import TURNS
from ...resources.team import NoProgress
from ..calls import effects
from ..calls.children import ChildWorkflows
from ..calls.traces import team_span
from ..state.constants import STALL_SIMILARITY, STALL_WORDS
from ..state.decisions import record
from ..state.run_state import RunState
from ..state.stopping import ActivityFailed, ActivityInterrupted, ContinueAsNew, should_continue_as_new, uncancelled
from .agent_turn import AgentTurn
from .member_turn import MemberTurn, TeamContext
from .members import MEMBER_KINDS, HumanTurn

_UNSPACED = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Tibetan, Burmese, Khmer
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9d"  # Japanese syllables
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Chinese characters
)
"""The characters of languages that put no spaces between words. Punctuation is not among them."""

_RUNS = re.compile(f"([{_UNSPACED}]+)|[^\\W{_UNSPACED}]+")


class StallDetection:
    """The latest texts of each member, as the words in them, and how many turns in a row were repetitions."""

    def __init__(
        self, rule: NoProgress | None, texts: Mapping[str, Sequence[str]] = MappingProxyType({}), repeated: int = 0
    ) -> None:
        self._rule = rule
        self.repeated = repeated
        self.texts = {speaker: tuple(each) for speaker, each in texts.items()}

    def is_stalled(self, speaker: str, text: str) -> bool:
        """Adds a text; whether the last turns, as many as the rule's window, were repetitions."""
        if self._rule is None:
            return False
        words = dict.fromkeys(itertools.islice(_words(text.casefold()), STALL_WORDS))
        before = self.texts.get(speaker, ())
        self.repeated = self.repeated + 1 if any(_similar(words, each.split()) for each in before) else 0
        self.texts[speaker] = (*before, " ".join(words))[-self._rule.window :]
        return self.repeated >= self._rule.window


def _words(text: str) -> Iterator[str]:
    """The words of a text; where there are no spaces between words, each two characters that follow each other."""
    for run in _RUNS.finditer(text):
        if run[1]:
            yield from (run[0][start : start + 2] for start in range(max(1, len(run[0]) - 1)))
        else:
            yield run[0]


def _similar(one: Collection[str], other: Collection[str]) -> bool:
    common = sum(word in other for word in one)
    return common >= STALL_SIMILARITY * (len(one) + len(other) - common)


class TeamResult:
    """The result of a team, as far as its discussion has come; ``max_turns`` bounds its turns, if anything does."""

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
        """Adds a turn that followed the conversation so far, and whose failure is the team's."""
        self.move_to(turn.head)
        self.add_parallel_turns(turn)
        if turn.failure:
            self.end_by(turn.failure.in_turn(member, self.so_far.turns))

    def add_parallel_turns(self, *turns: TurnResult) -> None:
        """Adds turns whose messages are in the conversation already, and whose failures are not the team's."""
        self.so_far = self.so_far.followed_by(*turns)
        self.add_member_failures(*(failure for turn in turns for failure in turn.member_failures))
        if above := next((turn.above for turn in turns if turn.outer_budget and not turn.failure), None):
            self.end_by(above)
        self._run.details.show_turn(self._plan.name, self.so_far, self.max_turns)

    def add_member_failures(self, *failures: Failure) -> None:
        """Adds failures of members that are not the team's; only the first ones are kept."""
        if failures:
            self.so_far = self.so_far.with_member_failures(failures)

    def add_usage(self, usage: TokenUsage) -> None:
        """Counts what a call has cost that was no member's turn."""
        self.so_far = self.so_far.with_usage(self.so_far.usage + usage)

    def add_message(self, message: Message) -> None:
        """Adds a message that is in the conversation already, but was no turn."""
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
        """Ends the team with a failure, or as its own or an enclosing budget says."""
        if failure.budget and not self.so_far.failure:
            self.so_far = self.so_far.ended_by(failure, self._plan.id)
        else:
            self.fail(failure)

    def stop(self, reason: StopReason, note: str | None = None) -> None:
        """Ends the team for a reason that is no failure."""
        self.so_far = self.so_far.because(reason, note)

    def reach_max_turns(self) -> None:
        """Ends the team at its bound: an error, unless ``onMaxTurns: complete`` (ARK: team strategies)."""
        text = f"team {self._plan.strategy} MaxTurns reached {self._plan.name}"
        if self._plan.bounded_by_default:
            text = f"{text}: nothing else bounds the run, so that it ends after {self.so_far.turns} turns"
        failure = None if self._plan.on_max_turns == "complete" else MaxTurnsReached(text).as_failure()
        self.so_far = self.so_far.because("max_turns").because_of(failure)

    def set_answer(self, text: str) -> None:
        """Makes ``text`` the answer of the team, in place of the last message."""
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

    A strategy decides who speaks next from ``members``, ``last_speaker`` (the index of who spoke last), ``turns`` (how
    many turns were taken) and ``strategy_state`` alone, so that it can be continued after any turn.
    """

    def __init__(
        self,
        plan: TeamPlan,
        thread: Thread,
        run: RunState,
        children: ChildWorkflows,
        state: TeamState | None = None,
    ) -> None:
        state = state or TeamState(kind="team", so_far=TurnResult(head=thread.head, turns=0))
        self.plan = plan
        self.members = plan.members
        self.run = run
        self.result = TeamResult(plan, run, state.so_far, state.turns)
        self.last_speaker = state.last_speaker
        self.evaluated = state.verdict
        self.strategy_state = dict(state.strategy_state)
        self.context = TeamContext(plan.name, run, children)
        self._open_turn: tuple[int, AgentTurn | None] | None = None
        self._thread = thread
        self._state = state
        self._stall = StallDetection(plan.no_progress, state.said, state.repeated)

    @property
    def turns(self) -> int:
        """How many turns were taken."""
        return self.result.so_far.turns

    @property
    def max_turns(self) -> int | None:
        """How many turns may be taken; None where nothing bounds them."""
        return self.result.max_turns

    @max_turns.setter
    def max_turns(self, turns: int | None) -> None:
        self.result.max_turns = turns

    @property
    def thread(self) -> Thread:
        """The conversation as far as it has come."""
        return self._thread.at(self.result.so_far.head)

    @property
    def state(self) -> TeamState:
        """The state from which a continued run resumes the discussion."""
        member, agent_turn = self._open_turn or (None, None)
        return TeamState(
            kind="team",
            so_far=self.result.so_far,
            turns=self.max_turns,
            last_speaker=self.last_speaker,
            verdict=self.evaluated,
            said=self._stall.texts,
            repeated=self._stall.repeated,
            strategy_state=self.strategy_state,
            interrupted_member=member,
            interrupted_turn=agent_turn.state if agent_turn else None,
        )

    def can_continue(self) -> bool:
        """Whether another member may speak."""
        return self.result.is_open

    async def restore(self) -> None:
        """Finishes a turn in whose middle the run before this one continued as new."""
        if self._state.interrupted_member is not None:
            await self.run_member(self._state.interrupted_member, self._state.interrupted_turn)
        elif self.turns:
            self.run.details.show_turn(self.plan.name, self.result.so_far, self.max_turns)

    async def run_member(self, index: int, state: AgentState | None = None) -> None:
        """Lets one member take its turn, adds what it says, and evaluates the conditions (ARK: teams).

        Between two turns, and between the steps of an agent's turn, a long run continues as new.
        """
        member = self.members[index]
        await self.attempt(self.run.ready())
        if not (self.can_continue() or state):
            return
        turn = MemberTurn(member.name, self.turns + 1, self.max_turns, self.thread, index=index, state=state)
        result = await self.run_turn(member, turn)
        self.result.add_turn(member.name, result)
        self.last_speaker = index
        await self._evaluate(index, member.name, silent=not result.messages)
        self.continue_as_new_if_long()

    async def run_turn(self, member: MemberPlan, turn: MemberTurn) -> TurnResult:
        """What a member says in a turn. A turn that failed or was stopped before it began has said nothing."""
        running = MEMBER_KINDS[member.kind](member, self.context, turn)
        if turn.index is not None and isinstance(running, AgentTurn | HumanTurn):
            self._open_turn = turn.index, running if isinstance(running, AgentTurn) else None
        try:
            result = await running.execute()
        except (ActivityInterrupted, asyncio.CancelledError):
            result = TurnResult(head=turn.thread.head, turns=0, stop_reason=self.run.stop.interruption)
        except ActivityFailed as failed:
            result = TurnResult(head=turn.thread.head, turns=0, stop_reason="failed", failure=failed.failure)
        if turn.index is not None:
            self._open_turn = None
        record(TURNS, kind=member.kind, outcome=result.stop_reason)
        return result

    def continue_as_new_if_long(self) -> None:
        """Raises ContinueAsNew between two turns of a long run."""
        if self.can_continue() and should_continue_as_new():
            raise ContinueAsNew

    async def _evaluate(self, index: int, speaker: str, *, silent: bool) -> None:
        """Looks whether the discussion stalls, and evaluates what its conditions say after a turn.

        After a ``silent`` turn, which has added nothing, the last message is not the speaker's.
        """
        if self.can_continue() and self._is_stalled(speaker, silent=silent):
            self._on_stall()
        conditional = any(edge.conditional for edge in self.plan.edges if edge.from_ == index)
        if self.can_continue() and (self.plan.conditional or conditional):
            await self.evaluate(self.evaluation(index, silent=silent))

    def _is_stalled(self, speaker: str, *, silent: bool) -> bool:
        if self.plan.no_progress is None or silent:
            return False
        messages = self.result.so_far.messages
        return self._stall.is_stalled(speaker, messages[-1].content if messages else "")

    def evaluation(
        self, index: int | None = None, brief: SpeakerBrief | None = None, *, silent: bool = False
    ) -> EvaluateRequest:
        """What a team's conditions are evaluated on, after the turn of the member at ``index``."""
        return EvaluateRequest(
            thread=self.thread,
            team=self.plan.id,
            member_index=index,
            turn=self.turns,
            tokens=self.result.so_far.usage.total_tokens,
            elapsed=(workflow.now() - self.run.started_at).total_seconds(),
            brief=brief,
            silent=silent,
        )

    async def evaluate(self, request: EvaluateRequest) -> None:
        """Evaluates the conditions, and ends the discussion if ``terminateWhen`` holds."""
        self.evaluated = await self.attempt(effects.evaluate(self.run, request)) or EvaluateResult()
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
        """The result of a call; None where it fails, which fails the discussion, or where the run is to stop."""
        try:
            return await call
        except ActivityFailed as failed:
            self.result.end_by(failed.failure)
        except (ActivityInterrupted, asyncio.CancelledError):
            workflow.logger.info("stopped between two turns")
        return None

    async def append(self, items: Sequence[ConversationItem], bookmark: Bookmark | None = None) -> None:
        """Adds items to the conversation, even while the run is being cancelled."""
        head = self.result.so_far.head
        task = asyncio.create_task(effects.append(self.run, head, tuple(items), bookmark))
        try:
            self.result.move_to(await uncancelled(task))
        except ActivityFailed as failed:
            self.result.fail(failed.failure)


async def reach_max_turns(team: Discussion) -> None:
    """Ends it as its plan says; in ARK's dialect a normal end adds a system message (ARK: today's dialect)."""
    if team.plan.dialect == "ark" and team.plan.on_max_turns == "complete":
        text = f"Team conversation reached maximum turns limit ({team.turns})"
        message = Message(role="system", content=text)
        await team.append([message])
        team.result.add_message(message)
    team.result.reach_max_turns()


Strategy = Callable[[Discussion], Awaitable[None]]
"""Runs the members of a team, in its order, until the discussion can no longer continue."""


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
        self._discussion = Discussion(pinned.plan, pinned.thread, run, children, state)

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
            if messages := self._run.inbox.drain():
                await self._discussion.append(messages)
            result = self._discussion.result.final()
            span.finish(result.stop_reason, result.failure)
        return result
