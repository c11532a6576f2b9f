"""The rounds of a panel or a debate: its members, referee, moderator, judge and synthesizer."""

from ...conversation.contracts.continuation import PanelProgress
from ...conversation.contracts.member_plans import HumanMember, TeamMember
from ...conversation.contracts.panel_requests import ConcludeRequest, SpeakerBrief, SpeakerRole
from ...conversation.contracts.plan import AgentPlan, MemberPlan
from ...conversation.messages.message import PanelMessageKind
from ...conversation.messages.turn import TurnResult
from ...resources.base import JsonObject
from ..calls import panels
from ..discussion.discussion import Discussion
from ..discussion.member_turn import MemberTurn
from ..state.errors import ActivityFailed, ActivityInterrupted
from .role_outputs import read_contribution, read_critique, read_decision, read_verdict
from .transcript import PanelTranscript


class PanelDiscussion:
    """A panel or a debate in progress. Its strategy decides when a round begins, and what comes between two.

    ``round`` counts from 1; ``waiting`` are the indexes of the members who have yet to speak in it.
    """

    def __init__(self, team: Discussion) -> None:
        assert team.plan.panel
        kept = PanelProgress.model_validate(team.kept or {"begun": team.result.so_far.head})
        self.team, self.plan = team, team.plan.panel
        self.round, self.waiting = kept.round, [*kept.waiting]
        self._criticized, self._done = kept.criticized, kept.done
        self._transcript = PanelTranscript(team, self.plan, kept.begun)
        team.context.warned.update(kept.warned)
        team.max_turns = self.plan.max_rounds * len(team.members)

    def can_continue(self) -> bool:
        """Whether anybody may still speak."""
        return self.team.can_continue()

    async def begin(self) -> None:
        """Sets the session's first values, and clears the transcript that it shares (round-robin pattern: session)."""
        if self.team.kept:
            return  # the run before this one has begun it
        session = self.team.run.session
        session.update({**self.plan.session, **session.values})
        if self.plan.contributions:
            await self._transcript.append()

    def open_round(self) -> None:
        """Begins a round in which every member speaks once."""
        self.round, self.waiting = self.round + 1, [*range(len(self.team.members))]

    async def run_next_member(self) -> None:
        """Lets the next member of the round speak, and adds its contribution to the transcript."""
        await self.team.attempt(self._read_inbox())
        if not self.can_continue():
            return
        index = self.waiting.pop(0)
        member, name = self.team.members[index], self.plan.roster[index]
        turn = await self._run(member, self._brief("member", index), name)
        if isinstance(member, HumanMember) and not turn.messages:
            pass  # a turn that was skipped has no contribution
        elif _is_complete(turn, member):
            text = None if isinstance(member, AgentPlan) and member.cast else read_contribution(turn.message)
            text = turn.message if text is None and isinstance(member, HumanMember) else text
            turn = await self._transcript.add(turn, member, name, "contribution", self.round, text)
        elif isinstance(member, TeamMember):
            turn = turn.model_copy(update={"head": self.team.result.so_far.head})
        self.team.result.add_turn(member.name, turn)
        self.team.last_member = index
        self.team.kept = self._progress()
        self.team.continue_as_new_if_long()

    async def run_referee(self) -> None:
        """Lets the referee criticize the round, if there is one and it has not yet."""
        if "referee" in self.plan.parts and self._criticized < self.round and self.can_continue():
            self._criticized = self.round
            await self.team.attempt(self._criticize())

    async def run_moderator(self) -> None:
        """Lets the moderator decide who speaks in the round that was opened, if there is one."""
        if "moderator" in self.plan.parts and self.can_continue():
            self.waiting = []
            await self.team.attempt(self._moderate())

    async def run_judge(self) -> None:
        """Lets the judge decide the debate, unless it was ended early."""
        if self._is_complete():
            await self.team.attempt(self._judge())

    async def is_over(self) -> bool:
        """Whether no round follows: it was the last, the moderator is done, or ``terminateWhen`` holds."""
        if not self.round:
            return False
        if not self.can_continue() or self.round >= self.plan.max_rounds or self._done:
            return True
        if self.team.plan.conditional:
            await self.team.evaluate(self.team.evaluation().model_copy(update={"brief": self._brief("member")}))
        return not self.can_continue()

    async def deliver(self) -> None:
        """Makes the answer of the panel: the synthesizer's, or else its transcript as JSON."""
        if self._is_complete() and "synthesizer" in self.plan.parts:
            await self.team.attempt(self._synthesize())
        elif self._is_complete() or self.team.result.final().stop_reason in ("terminated", "budget"):
            await self.team.attempt(self._conclude())

    async def _criticize(self) -> None:
        turn = await self._run_role("referee")
        await self._add(turn, "referee", "critique", read_critique(turn.message))

    async def _moderate(self) -> None:
        turn = await self._run_role("moderator")
        decision = read_decision(turn.message, self.plan.roster)
        await self._add(turn, "moderator", "decision", decision.model_dump_json())
        self.waiting, self._done = [self.plan.roster.index(name) for name in decision.next_speakers], decision.done

    async def _judge(self) -> None:
        turn = await self._run_role("judge")
        verdict = read_verdict(turn.message, self.plan.stances)
        await self._add(turn, "judge", "verdict", verdict.model_dump_json())

    async def _synthesize(self) -> None:
        turn = await self._run_role("synthesizer")
        await self._add(turn, "synthesizer", "deliverable")
        self.team.result.set_answer(turn.message)

    async def _conclude(self) -> None:
        request = ConcludeRequest(thread=self.team.thread, brief=self._brief("synthesizer"))
        concluded = await panels.conclude(self.team.run, request)
        self.team.result.move_to(concluded.head)
        self.team.result.add_message(concluded.message)
        self.team.result.set_answer(concluded.message.content)

    async def _run_role(self, role: SpeakerRole) -> TurnResult:
        """The turn of a role. Raises ActivityFailed, or ActivityInterrupted if it was not finished."""
        await self._read_inbox()
        speaker = self.plan.parts[role]
        turn = await self._run(speaker, self._brief(role), role)
        self.team.result.add_usage(turn.usage)
        if failure := turn.failure or turn.above:
            raise ActivityFailed(failure.model_copy(update={"member": role}))
        if not _is_complete(turn, speaker):
            raise ActivityInterrupted
        return turn

    async def _run(self, speaker: MemberPlan, brief: SpeakerBrief, name: str) -> TurnResult:
        number = self.team.turns + 1
        turn = MemberTurn(name, number, self.team.max_turns, self.team.thread, brief)
        return await self.team.run_turn(speaker, turn)

    async def _add(self, turn: TurnResult, role: SpeakerRole, part: PanelMessageKind, text: str | None = None) -> None:
        added = await self._transcript.add(turn, self.plan.parts[role], role, part, self.round, text)
        self.team.result.add_message(added.messages[-1])

    async def _read_inbox(self) -> None:
        """Waits while the run is paused, then adds what people said: the next speaker reads it in its brief."""
        await self.team.run.ready()
        if messages := self.team.run.inbox.drain():
            await self._transcript.append(*messages)

    def _brief(self, part: SpeakerRole, index: int | None = None) -> SpeakerBrief:
        return self._transcript.brief(self.round, part, index)

    def _is_complete(self) -> bool:
        """Whether the rounds came to their own end."""
        so_far = self.team.result.so_far
        return not (so_far.failure or so_far.ended or so_far.stop_reason == "budget" or self.team.run.stop.reason)

    def _progress(self) -> JsonObject:
        progress = PanelProgress(
            begun=self._transcript.begun,
            round=self.round,
            waiting=tuple(self.waiting),
            criticized=self._criticized,
            done=self._done,
            warned=tuple(sorted(self.team.context.warned)),
        )
        return progress.model_dump(mode="json")


def _is_complete(turn: TurnResult, speaker: MemberPlan) -> bool:
    """Whether a turn came to its own end; a nested team may have been terminated by one of its members."""
    unfinished = ("canceled",) if isinstance(speaker, TeamMember) else ("canceled", "terminated", "timeout", "budget")
    return not turn.failure and turn.stop_reason not in unfinished
