"""The rounds of a panel or a debate: its members, referee, moderator, judge and synthesizer."""

from collections.abc import Sequence
from typing import TypeVar

from pydantic import ValidationError
from temporalio import workflow

from ...contracts.errors import WrongPart
from ...contracts.inputs import PanelProgress
from ...contracts.message import Head, Message, PanelMessageKind, Quote
from ...contracts.panel import ConcludeRequest, Decision, RefereeOutput, SpeakerBrief, SpeakerRole, Verdict
from ...contracts.plan import AgentPlan, HumanMember, MemberPlan, PanelPlan, TeamMember
from ...contracts.requests import Bookmark
from ...contracts.text import parse_json
from ...contracts.turn import TurnResult
from ...resources.base import JsonModel, JsonObject
from ..calls import effects
from ..state.constants import CONCLUDE_CANCELED
from ..state.stopping import ActivityFailed, ActivityInterrupted
from .discussion import Discussion
from .member_turn import MemberTurn

Output = TypeVar("Output", bound=JsonModel)


def read_contribution(text: str) -> str | None:
    """The text of an answer ``{"text": "…"}``; None for any other (round-robin pattern: customizing members)."""
    try:
        value = parse_json(text)
    except ValueError:
        return None
    text_field = value.get("text") if isinstance(value, dict) else None
    return text_field if isinstance(text_field, str) else None


def read_critique(text: str) -> str:
    """A referee's critique: a plain text, or ``{"critique": "…"}``. Raises ActivityFailed for any other object."""
    try:
        value = parse_json(text)
    except ValueError:
        return text
    return _read("referee", text, RefereeOutput).critique if isinstance(value, dict) else text


def read_decision(text: str, names: Sequence[str]) -> Decision:
    """A moderator's decision. Raises ActivityFailed for an unknown name, or if it names no speaker."""
    decision = _read("moderator", text, Decision)
    if unknown := [name for name in decision.next_speakers if name not in names]:
        raise _wrong(f"the moderator names '{unknown[0]}', which is not a member; members: {', '.join(names)}")
    if not (decision.next_speakers or decision.done):
        raise _wrong("the moderator names no next speaker and doesn't end the debate")
    return decision


def read_verdict(text: str, stances: Sequence[str]) -> Verdict:
    """A judge's verdict. Raises ActivityFailed if the winner is not one of the stances."""
    verdict = _read("judge", text, Verdict)
    if verdict.winner is not None and verdict.winner not in stances:
        raise _wrong(f"the judge's winner is not a stance of this debate: '{verdict.winner[:200]}'")
    return verdict


def _read(role: str, text: str, output: type[Output]) -> Output:
    try:
        return output.model_validate_json(text)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors()[:3])
        raise _wrong(f"the {role}'s answer is not a valid {output.__name__}: {wrong[:500]}") from None


def _wrong(text: str) -> ActivityFailed:
    return ActivityFailed.of(WrongPart(text))


class PanelTranscript:
    """The panel's part of a team's conversation, after the head ``begun``."""

    def __init__(self, team: Discussion, plan: PanelPlan, begun: Head) -> None:
        self._team = team
        self._plan = plan
        self.begun = begun

    def brief(self, round_number: int, part: SpeakerRole, index: int | None = None) -> SpeakerBrief:
        """The brief that a speaker reads instead of the conversation: the member at ``index``, or another role."""
        return SpeakerBrief(
            team=self._team.plan.id,
            part=part,
            member_index=index,
            round=round_number,
            begun=self.begun.depth,
            session=self._team.run.session.values,
            hidden=part == "synthesizer" and not self._plan.visibility.client,
        ).without_defaults

    async def add(
        self,
        turn: TurnResult,
        speaker: MemberPlan,
        name: str,
        part: PanelMessageKind,
        round_number: int,
        text: str | None = None,
    ) -> TurnResult:
        """Appends the result of a turn, or ``text`` instead, to the conversation; returns the turn as stored there.

        A result that is already a row of the journal is appended by reference.
        """
        message = Message(
            role="assistant",
            content=turn.message if text is None else text,
            name=name,
            part=part,
            round=round_number,
            decision=turn.messages[-1].decision if turn.messages else None,
            finish_reason=turn.finish_reason if text is None else None,
        )
        if text is None and not isinstance(speaker, TeamMember) and turn.answer is None:
            await self.append(Quote(row=turn.head.id, name=name, part=part, round=round_number))
        else:
            await self.append(message)
        head = self._team.result.so_far.head
        if isinstance(speaker, TeamMember):  # its members' messages are in a separate conversation
            return turn.saying(head, message)
        return turn.saying(head, *turn.messages[:-1], message, cut=turn.cut)

    async def append(self, *items: Quote | Message) -> None:
        """Appends items to the conversation, and moves the bookmark under which a session shares the transcript."""
        await self._team.append(items, self._bookmark())

    def _bookmark(self) -> Bookmark | None:
        shared = self._plan.contributions
        run = workflow.info().workflow_id
        if shared is None:
            return None
        session = self._team.thread.session(run, shared.session)
        return Bookmark(session=session, key=shared.key, owner=f"{run}@{self.begun.id}", begun=self.begun.depth)


class PanelDiscussion:
    """A panel or a debate in progress. Its strategy decides when a round begins, and what happens between rounds.

    ``round`` counts from 1; ``waiting`` are the indexes of the members that have yet to speak in it.
    """

    def __init__(self, team: Discussion) -> None:
        assert team.plan.panel
        progress = PanelProgress.model_validate(team.strategy_state or {"begun": team.result.so_far.head})
        self.team = team
        self.plan = team.plan.panel
        self.round = progress.round
        self.waiting = [*progress.waiting]
        self._criticized = progress.criticized
        self._done = progress.done
        self._judged = progress.judged
        self._speaking = progress.speaking
        self._delivered = progress.delivered
        self._transcript = PanelTranscript(team, self.plan, progress.begun)
        team.context.warned.update(progress.warned)
        team.max_turns = self.plan.max_rounds * len(team.members)

    def can_continue(self) -> bool:
        """Whether any member may still speak."""
        return self.team.can_continue()

    async def begin(self) -> None:
        """Sets the session's initial values, and clears its shared transcript (round-robin pattern: session).

        If a previous run has begun the panel, this finishes the turn during which that run continued as new.
        """
        if self.team.strategy_state:
            await self._resume()
            return
        session = self.team.run.session
        session.update({**self.plan.session, **session.values})
        if self.plan.contributions:
            await self._transcript.append()

    async def _resume(self) -> None:
        match self._speaking:
            case "member":
                await self.run_next_member()
            case "referee":
                await self.team.attempt(self._criticize())
            case "moderator":
                await self.team.attempt(self._moderate())
            case "judge":
                await self.team.attempt(self._judge())
            case "synthesizer":
                self._delivered = True
                await self.team.attempt(self._synthesize())

    def open_round(self) -> None:
        """Begins a round in which every member speaks once."""
        self.round = self.round + 1
        self.waiting = [*range(len(self.team.members))]

    async def run_next_member(self) -> None:
        """Lets the next member of the round speak, and adds its contribution to the transcript."""
        index = self.waiting[0]
        member = self.team.members[index]
        await self.team.attempt(self._read_inbox("member"))
        if not (self.can_continue() or self.team.resumes):
            return
        name = self.plan.roster[index]
        turn = await self._run(member, self._brief("member", index), name)
        self.waiting = self.waiting[1:]
        self._speaking = None
        if isinstance(member, HumanMember) and not turn.messages:
            pass  # a turn that was skipped has no contribution
        elif _is_complete(turn, member):
            text = None if isinstance(member, AgentPlan) and member.default_agent else read_contribution(turn.message)
            text = turn.message if text is None and isinstance(member, HumanMember) else text
            turn = await self._transcript.add(turn, member, name, "contribution", self.round, text)
        elif isinstance(member, TeamMember):
            turn = turn.at(self.team.result.so_far.head)
        self.team.result.add_turn(member.name, turn)
        self.team.last_speaker = index
        self.team.strategy_state = self._progress()
        self.team.continue_as_new_if_long()

    async def run_referee(self) -> None:
        """Lets the referee, if there is one, criticize the round once."""
        if "referee" in self.plan.parts and self._criticized < self.round and self.can_continue():
            self._criticized = self.round
            await self.team.attempt(self._criticize())

    async def run_moderator(self) -> None:
        """Lets the moderator, if there is one, choose the speakers of the new round."""
        if "moderator" in self.plan.parts and self.can_continue():
            self.waiting = []
            await self.team.attempt(self._moderate())

    async def run_judge(self) -> None:
        """Lets the judge decide the debate, unless it was ended early, or decided in the run before this one."""
        if self._is_complete() and not self._judged:
            self._judged = True
            await self.team.attempt(self._judge())

    async def is_over(self) -> bool:
        """Whether no round follows: it was the last, the moderator ended the debate, or ``terminateWhen`` is true."""
        if not self.round:
            return False
        if not self.can_continue() or self.round >= self.plan.max_rounds or self._done:
            return True
        if self.team.plan.conditional:
            await self.team.evaluate(self.team.evaluation(brief=self._brief("member")))
        return not self.can_continue()

    async def deliver(self) -> None:
        """Produces the answer of the panel: the synthesizer's, or otherwise its transcript as JSON.

        One that is canceled, as by a query that ends at once, has a transcript as well.
        """
        if self._delivered:
            return
        reason = self.team.result.final().stop_reason
        if self._is_complete() and "synthesizer" in self.plan.parts:
            await self.team.attempt(self._synthesize())
        elif self._is_complete() or reason in ("terminated", "budget"):
            await self.team.attempt(self._conclude())
        elif reason == "canceled" and workflow.patched(CONCLUDE_CANCELED):
            self.team.keep_state()  # a retry goes on with the round
            await self.team.attempt(self._conclude())

    async def _criticize(self) -> None:
        turn = await self._run_role("referee")
        await self._add(turn, "referee", "critique", read_critique(turn.message))
        self._end_turn()

    async def _moderate(self) -> None:
        turn = await self._run_role("moderator")
        decision = read_decision(turn.message, self.plan.roster)
        await self._add(turn, "moderator", "decision", decision.model_dump_json())
        self.waiting = [self.plan.roster.index(name) for name in decision.next_speakers]
        self._done = decision.done
        self._end_turn()

    async def _judge(self) -> None:
        turn = await self._run_role("judge")
        verdict = read_verdict(turn.message, self.plan.stances)
        await self._add(turn, "judge", "verdict", verdict.model_dump_json())
        self._end_turn()

    async def _synthesize(self) -> None:
        turn = await self._run_role("synthesizer")
        await self._add(turn, "synthesizer", "deliverable")
        self.team.result.set_answer(turn.message)
        self._delivered = True
        self._end_turn()

    async def _conclude(self) -> None:
        request = ConcludeRequest(thread=self.team.thread, brief=self._brief("synthesizer"))
        concluded = await effects.conclude(self.team.run, request)
        self.team.result.move_to(concluded.head)
        self.team.result.add_message(concluded.message)
        self.team.result.set_answer(concluded.message.content)
        self._delivered = True
        self._end_turn()

    def _end_turn(self) -> None:
        """Clears the speaking role, so that the next run does not let it speak again."""
        self._speaking = None
        self.team.strategy_state = self._progress()

    async def _run_role(self, role: SpeakerRole) -> TurnResult:
        """The turn of a role. Raises ActivityFailed, or ActivityInterrupted if it was not finished."""
        await self._read_inbox(role)
        speaker = self.plan.parts[role]
        turn = await self._run(speaker, self._brief(role), role)
        self.team.result.add_usage(turn.usage)
        if failure := turn.failure or turn.above:
            raise ActivityFailed(failure.of_member(role))
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

    async def _read_inbox(self, speaking: SpeakerRole) -> None:
        """Waits while the run is paused, then adds people's messages, which the next speaker reads in its brief.

        If the previous run has begun the turn, nothing is added: the brief and the question to a person stay the same.
        """
        run = self.team.run
        begun = self.team.resumes or run.decisions.are_left_open
        self._speaking = speaking
        self.team.strategy_state = self._progress()
        if begun:
            return
        await run.ready(continues=True)
        if messages := run.inbox.drain():
            await self._transcript.append(*messages)

    def _brief(self, part: SpeakerRole, index: int | None = None) -> SpeakerBrief:
        return self._transcript.brief(self.round, part, index)

    def _is_complete(self) -> bool:
        """Whether the rounds ended regularly."""
        so_far = self.team.result.so_far
        return not (so_far.failure or so_far.ended or so_far.stop_reason == "budget" or self.team.run.stop.is_requested)

    def _progress(self) -> JsonObject:
        progress = PanelProgress(
            begun=self._transcript.begun,
            round=self.round,
            waiting=tuple(self.waiting),
            criticized=self._criticized,
            done=self._done,
            warned=tuple(sorted(self.team.context.warned)),
            judged=self._judged,
            delivered=self._delivered,
            speaking=self._speaking,
        )
        return progress.model_dump(mode="json")


def _is_complete(turn: TurnResult, speaker: MemberPlan) -> bool:
    """Whether a turn ended regularly; a nested team may have been terminated by one of its members."""
    unfinished = ("canceled",) if isinstance(speaker, TeamMember) else ("canceled", "terminated", "timeout", "budget")
    return not turn.failure and turn.stop_reason not in unfinished
