"""The discussion of a team: its members' turns one after the other, and the conditions evaluated between them."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from temporalio import workflow

from ...conversation.contracts.continuation import AgentState, TeamState
from ...conversation.contracts.plan import MemberPlan, TeamPlan
from ...conversation.contracts.requests import Bookmark, ConversationItem, EvaluateRequest, EvaluateResult
from ...conversation.messages.turn import Thread, TurnResult
from ...conversation.metrics import TURNS
from ..calls import effects
from ..calls.child_workflows import ChildWorkflows
from ..state.cancellation import uncancelled
from ..state.constants import SILENT_TURNS
from ..state.continue_as_new import should_continue_as_new
from ..state.errors import ActivityFailed, ActivityInterrupted, ContinueAsNew
from ..state.metrics import record
from ..state.run_state import RunState
from .agent_turn import AgentTurn
from .human_turn import HumanTurn
from .member_kinds import MEMBER_KINDS
from .member_turn import MemberTurn, TeamContext
from .stall_detection import StallDetection
from .team_result import TeamResult

T = TypeVar("T")


class Discussion:
    """A team's discussion in progress.

    A strategy decides who speaks next from ``members``, ``last_member`` (the index of who spoke last), ``turns`` (how
    many turns were taken) and ``kept`` alone, so that it can be continued after any turn.
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
        self.plan, self.members, self.run = plan, plan.members, run
        self.result = TeamResult(plan, run, state.so_far, state.turns)
        self.last_member, self.evaluated, self.kept = state.seat, state.verdict, dict(state.kept)
        self.context = TeamContext(plan.name, run, children)
        self._open_turn: tuple[int, AgentTurn | None] | None = None
        self._thread, self._state = thread, state
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
        return self._thread.model_copy(update={"head": self.result.so_far.head})

    @property
    def state(self) -> TeamState:
        """What a continued run needs to go on with the discussion."""
        member, agent_turn = self._open_turn or (None, None)
        return TeamState(
            kind="team",
            so_far=self.result.so_far,
            turns=self.max_turns,
            seat=self.last_member,
            verdict=self.evaluated,
            said=self._stall.texts,
            repeated=self._stall.repeated,
            kept=self.kept,
            heard=member,
            midst=agent_turn.state if agent_turn else None,
        )

    def can_continue(self) -> bool:
        """Whether another member may speak."""
        return self.result.is_open

    async def restore(self) -> None:
        """Finishes a turn in whose middle the run before this one continued as new."""
        if self._state.heard is not None:
            await self.run_member(self._state.heard, self._state.midst)
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
        self.last_member = index
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
            result = TurnResult(head=turn.thread.head, turns=0, stop_reason=self.run.stop.reason or "canceled")
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
            request = self.evaluation(index)
            await self.evaluate(request.model_copy(update={"silent": True}) if silent else request)

    def _is_stalled(self, speaker: str, *, silent: bool) -> bool:
        if self.plan.no_progress is None or (silent and workflow.patched(SILENT_TURNS)):
            return False
        messages = self.result.so_far.messages
        return self._stall.is_stalled(speaker, messages[-1].content if messages else "")

    def evaluation(self, index: int | None = None) -> EvaluateRequest:
        """What a team's conditions are evaluated on, after the turn of the member at ``index``."""
        return EvaluateRequest(
            thread=self.thread,
            team=self.plan.id,
            seat=index,
            turn=self.turns,
            tokens=self.result.so_far.usage.total_tokens,
            elapsed=(workflow.now() - self.run.started_at).total_seconds(),
        )

    async def evaluate(self, request: EvaluateRequest) -> None:
        """Evaluates the conditions, and ends the discussion if ``terminateWhen`` holds."""
        self.evaluated = await self.attempt(effects.evaluate(self.run, request)) or EvaluateResult()
        if self.evaluated.ends:
            self.result.stop("condition")

    def _on_stall(self) -> None:
        rule = self.plan.no_progress
        text = f"{self._stall.repeated} turns in a row have repeated what was said before"
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
