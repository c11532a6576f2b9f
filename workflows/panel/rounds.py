"""What has a panel beyond a discussion? Rounds, a brief for whoever speaks, other parts, and what it delivers."""

from temporalio import workflow

from ...conversation.contracts.continuation import PanelState
from ...conversation.contracts.panel_requests import Brief, BriefPart, ConcludeRequest
from ...conversation.contracts.plan import MemberPlan, PanelPlan, TeamMember
from ...conversation.contracts.requests import Bookmark
from ...conversation.messages.message import Message, Part, Quote
from ...conversation.messages.turn import Turn
from ...resources.base import JsonObject
from ..calls import effects
from ..calls.execute_activity import Failed, Interrupted
from ..discussion.discussion import Discussion
from ..state.session_state import Session
from .member_turn import take
from .role_outputs import critique_in, decision_in, verdict_in


class Panel:
    """A panel in progress, or a debate. Its strategy decides when a round begins, and what comes between two.

    ``round`` counts from 1; ``waiting`` are the seats of those who have yet to speak in it.
    """

    def __init__(self, team: Discussion, plan: PanelPlan, session: Session) -> None:
        kept = PanelState.model_validate(team.kept or {"begun": team.so_far.head})
        self.team, self.plan, self.session = team, plan, session
        self.round, self.waiting = kept.round, [*kept.waiting]
        self._criticized, self._done, self._begun = kept.criticized, kept.done, kept.begun
        team.warned.update(kept.warned)
        team.turns = plan.max_rounds * len(team.members)

    def goes_on(self) -> bool:
        """Whether anybody may speak still."""
        return self.team.goes_on()

    async def begin(self) -> None:
        """Fills the session, and clears the transcript that it keeps (seed 002, initContributions)."""
        if self.team.kept:
            return  # in the run before this one
        self.session.put({**self.plan.session, **self.session.values})
        if self.plan.contributions:
            await self._append()

    def open_round(self) -> None:
        """Begins a round in which everybody speaks once."""
        self.round, self.waiting = self.round + 1, [*range(len(self.team.members))]

    async def hear_next(self) -> None:
        """Hears whoever is next, and enters the contribution into the transcript."""
        await self.team.attempt(self._hear_people())
        if not self.goes_on():
            return
        seat = self.waiting.pop(0)
        member, name = self.team.members[seat], self.plan.roster[seat]
        turn = await take(self.team, member, self._brief("member", seat), name)
        if _is_whole(turn, member):
            turn = await self._entered(turn, member, name, "contribution")
        elif isinstance(member, TeamMember):
            turn = turn.model_copy(update={"head": self.team.so_far.head})
        self.team.join(member, turn)
        self.team.seat = seat
        self.team.kept = self._state()
        self.team.rest()

    async def _hear_people(self) -> None:
        """Waits as long as the panel is paused, and lets people be heard by whoever speaks next."""
        await self.team.stop.ready()
        if said := self.team.stop.floor.take():
            await self._append(*said)

    def _state(self) -> JsonObject:
        state = PanelState(
            begun=self._begun,
            round=self.round,
            waiting=tuple(self.waiting),
            criticized=self._criticized,
            done=self._done,
            warned=tuple(sorted(self.team.warned)),
        )
        return state.model_dump(mode="json")

    async def hear_referee(self) -> None:
        """Has the round criticized, if there is a referee and it hasn't been yet."""
        if "referee" in self.plan.parts and self._criticized < self.round and self.goes_on():
            self._criticized = self.round
            await self.team.attempt(self._criticize())

    async def hear_moderator(self) -> None:
        """Has the moderator decide who speaks in the round that was opened, if there is one."""
        if "moderator" in self.plan.parts and self.goes_on():
            self.waiting = []
            await self.team.attempt(self._decide())

    async def hear_judge(self) -> None:
        """Has the debate judged, unless it was broken off."""
        if self._is_through():
            await self.team.attempt(self._judge())

    async def is_over(self) -> bool:
        """Whether no round follows: the last one was held, the moderator is done, or ``terminateWhen`` holds."""
        if not self.round:
            return False
        if not self.goes_on() or self.round >= self.plan.max_rounds or self._done:
            return True
        if self.team.plan.conditional:
            await self.team.judge(self.team.evaluation().model_copy(update={"brief": self._brief("member")}))
        return not self.goes_on()

    async def deliver(self) -> None:
        """What comes out of it: the synthesizer's words, or what the panel has come to as it is."""
        if self._is_through() and "synthesizer" in self.plan.parts:
            await self.team.attempt(self._synthesize())
        elif self._is_through() or self.team.result().stop_reason == "terminated":
            await self.team.attempt(self._conclude())

    def _is_through(self) -> bool:
        """Whether the rounds came to their own end."""
        so_far = self.team.so_far
        return not (so_far.failure or so_far.ended or self.team.stop.reason)

    async def _criticize(self) -> None:
        turn = await self._heard("referee")
        await self._say(turn, "referee", "critique", critique_in(turn.message))

    async def _decide(self) -> None:
        turn = await self._heard("moderator")
        decision = decision_in(turn.message, self.plan.roster)
        await self._say(turn, "moderator", "decision", decision.model_dump_json())
        self.waiting, self._done = [self.plan.roster.index(name) for name in decision.next_speakers], decision.done

    async def _judge(self) -> None:
        turn = await self._heard("judge")
        verdict = verdict_in(turn.message, self.plan.stances)
        await self._say(turn, "judge", "verdict", verdict.model_dump_json())

    async def _synthesize(self) -> None:
        turn = await self._heard("synthesizer")
        await self._say(turn, "synthesizer", "deliverable")
        self.team.answer(turn.message)

    async def _conclude(self) -> None:
        said = await effects.conclude(ConcludeRequest(thread=self.team.thread, brief=self._brief("synthesizer")))
        self.team.move_to(said.head)
        self.team.say(said.message)
        self.team.answer(said.message.content)

    async def _say(self, turn: Turn, name: BriefPart, part: Part, text: str | None = None) -> None:
        entered = await self._entered(turn, self.plan.parts[name], name, part, text)
        self.team.say(entered.messages[-1])

    async def _heard(self, part: BriefPart) -> Turn:
        """What another than a member has said. Raises Failed, and Interrupted where it could not say it."""
        await self._hear_people()
        speaker = self.plan.parts[part]
        turn = await take(self.team, speaker, self._brief(part), part)
        self.team.spend(turn.usage)
        if turn.failure:
            raise Failed(turn.failure.model_copy(update={"member": part}))
        if not _is_whole(turn, speaker):
            raise Interrupted
        return turn

    async def _entered(self, turn: Turn, speaker: MemberPlan, name: str, part: Part, text: str | None = None) -> Turn:
        """The turn after what it has come to was put on the conversation: by reference, where a row holds just that."""
        if text is None and not isinstance(speaker, TeamMember) and turn.answer is None:
            item: Quote | Message = Quote(row=turn.head.id, name=name, part=part, round=self.round)
        else:
            said = turn.message if text is None else text
            item = Message(role="assistant", content=said, name=name, part=part, round=self.round)
        await self._append(item)
        marked = {"name": name, "part": part, "round": self.round}
        last = Message(role="assistant", content=turn.message if text is None else text).model_copy(update=marked)
        own = () if isinstance(speaker, TeamMember) else turn.messages[:-1]
        return turn.model_copy(update={"head": self.team.so_far.head, "messages": (*own, last)})

    async def _append(self, *items: Quote | Message) -> None:
        await self.team.append(items, self._bookmark())

    def _bookmark(self) -> Bookmark | None:
        shared, run = self.plan.contributions, workflow.info().workflow_id
        if shared is None:
            return None
        session, owner = shared.session or run.partition("/")[0], f"{run}@{self._begun.id}"
        return Bookmark(session=session, key=shared.key, owner=owner, begun=self._begun.depth)

    def _brief(self, part: BriefPart, seat: int | None = None) -> Brief:
        brief = Brief(team=self.team.plan.id, part=part, seat=seat, round=self.round, begun=self._begun.depth)
        hidden = part == "synthesizer" and not self.plan.visibility.client
        more = {"session": self.session.values} if self.session.values else {}
        return brief.model_copy(update={**more, **({"hidden": True} if hidden else {})})


def _is_whole(turn: Turn, speaker: MemberPlan) -> bool:
    """Whether a turn came to its end; a team's may be another than its own last word."""
    unfinished = ("canceled",) if isinstance(speaker, TeamMember) else ("canceled", "terminated", "timeout")
    return not turn.failure and turn.stop_reason not in unfinished
