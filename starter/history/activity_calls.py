"""What is a call of an activity about? Its request, and what earlier replies in its run tell of that."""

from dataclasses import dataclass, field, replace

from ...conversation.contracts.panel_requests import BriefRequest, PerformRequest, PerformResult, SpeakerBrief
from ...conversation.contracts.plan import AgentPlan, MemberPlan, TeamPlan
from ...conversation.contracts.requests import (
    AppendRequest,
    AskModelRequest,
    AskModelResult,
    Pinned,
    SelectRequest,
    SelectResult,
    UseToolRequest,
    UseToolResult,
)
from ...conversation.messages.message import Head, Message
from .run_events import ActivityCall, CallReply, CallRequest, RunInfo
from .said_messages import said_messages

REQUEST_TYPES: dict[str, type[CallRequest]] = {
    "ask_model": AskModelRequest,
    "use_tool": UseToolRequest,
    "select": SelectRequest,
    "brief": BriefRequest,
    "perform": PerformRequest,
    "append": AppendRequest,
}
REPLY_TYPES: dict[str, type[CallReply]] = {
    "pin": Pinned,
    "ask_model": AskModelResult,
    "use_tool": UseToolResult,
    "select": SelectResult,
    "perform": PerformResult,
    "append": Head,
}


@dataclass
class CallTracker:
    """The calls of a run, read in their order; ``team`` is what the run is of, if it is a team's."""

    team: TeamPlan | None = None
    _speakers: dict[str, AgentPlan] = field(default_factory=dict)
    _replies: dict[str, Message] = field(default_factory=dict)
    _briefs: dict[str, SpeakerBrief] = field(default_factory=dict)
    _hidden: list[str] = field(default_factory=list)

    def child(self, parent: RunInfo, workflow_id: str, run_id: str) -> RunInfo:
        """A child run of ``parent``, whose calls these are."""
        hidden = parent.hidden or any(workflow_id.startswith(f"{parent.id}/{place}/") for place in self._hidden)
        return RunInfo(workflow_id, run_id, parent=parent, hidden=hidden)

    def begun(self, run: RunInfo, call: ActivityCall) -> ActivityCall:
        """A call that is wanted, with what is known of it."""
        call = self._named(call)
        brief = self._brief_of(call)
        if brief is None:
            return replace(call, hidden=run.hidden)
        if brief.hidden and isinstance(call.request, BriefRequest):
            self._hidden.append(f"round-{brief.round}/{brief.part}")
        return replace(call, brief=brief, member=self._seat(brief), hidden=run.hidden or brief.hidden)

    def keep(self, reply: CallReply, brief: SpeakerBrief | None = None) -> None:
        """Keeps what later calls refer to."""
        match reply:
            case AskModelResult(message=message, head=head):
                self._replies[head.id] = message
                if brief:
                    self._briefs[head.id] = brief
            case PerformResult(message=message, head=head):
                self._replies[head.id] = message
            case Pinned(plan=TeamPlan() as team):
                self.team = team
                parts = team.panel.parts.values() if team.panel else ()
                members: list[MemberPlan | None] = [*team.members, team.aggregator, *parts]
                self._speakers = {each.speaker: each for each in members if isinstance(each, AgentPlan)}
            case Pinned(plan=AgentPlan() as agent):
                self._speakers = {agent.speaker: agent}

    def said(self, call: ActivityCall, reply: CallReply) -> tuple[Message, ...]:
        """What has been said, and may be heard, once a call is answered."""
        panel = self.team.panel if self.team else None
        hidden = "deliverable" if panel and not panel.visibility.client else None
        said = () if call.hidden else said_messages(call, reply, self._replies)
        return tuple(message for message in said if hidden is None or message.part != hidden)

    def _named(self, call: ActivityCall) -> ActivityCall:
        """The call with the name of what is asked or used."""
        match call.request:
            case AskModelRequest(speaker=speaker, fallback=fallback) if speaker in self._speakers:
                return replace(call, name=self._speakers[speaker].models[fallback])
            case UseToolRequest(reply=reply, call=number) if reply in self._replies:
                wanted = self._replies[reply].tool_calls[number]
                return replace(call, name=wanted.name, arguments=wanted.arguments)
            case SelectRequest(fallback=fallback) if self.team and self.team.chooser:
                return replace(call, name=self.team.chooser.models[fallback])
            case UseToolRequest(reply=None):
                return replace(call, name=call.speaker)
            case PerformRequest(function=function):
                return replace(call, name=function)
        return call

    def _brief_of(self, call: ActivityCall) -> SpeakerBrief | None:
        match call.request:
            case AskModelRequest(brief=brief) | BriefRequest(brief=brief) | PerformRequest(brief=brief):
                return brief
            case UseToolRequest(reply=str(reply)):
                return self._briefs.get(reply)
        return None

    def _seat(self, brief: SpeakerBrief) -> str:
        """The name of who sits there."""
        panel = self.team.panel if self.team else None
        return panel.roster[brief.seat] if panel and brief.seat is not None else ""
