"""Completes each activity call with what earlier results contain: the name of its tool, its brief, its member."""

from dataclasses import dataclass, field, replace

from ...conversation.contracts.panel_requests import BriefRequest, PerformRequest, PerformResult, SpeakerBrief
from ...conversation.contracts.plan import AgentPlan, MemberPlan, QueryPlan, TargetPlan, TeamPlan
from ...conversation.contracts.replies import AskPersonRequest
from ...conversation.contracts.requests import AskModelRequest, AskModelResult, Pinned, SelectRequest
from ...conversation.contracts.tool_requests import UseToolRequest
from ...conversation.messages.message import Message
from .activity_types import CallResult
from .run_events import ActivityCall, RunInfo
from .said_messages import said_messages


@dataclass
class CallTracker:
    """Follows the calls of one run in their order; ``team`` is the plan of the run's team, if it has one."""

    team: TeamPlan | None = None
    _agents: dict[str, AgentPlan] = field(default_factory=dict)
    _replies: dict[str, Message] = field(default_factory=dict)
    _briefs: dict[str, SpeakerBrief] = field(default_factory=dict)
    _hidden_children: list[str] = field(default_factory=list)

    def child_run(self, parent: RunInfo, workflow_id: str, run_id: str) -> RunInfo:
        """A child run of ``parent``, which is the run that is followed."""
        places = (f"{parent.id}/{place}/" for place in self._hidden_children)
        return RunInfo(workflow_id, run_id, parent=parent, hidden=parent.hidden or workflow_id.startswith((*places,)))

    def complete(self, run: RunInfo, call: ActivityCall) -> ActivityCall:
        """A scheduled call with everything that is known about it."""
        call = self._with_name(call)
        brief = self._brief_of(call)
        if brief is None:
            return replace(call, hidden=run.hidden)
        if brief.hidden and isinstance(call.request, BriefRequest):
            self._hidden_children.append(f"round-{brief.round}/{brief.part}")
        return replace(call, brief=brief, member=self._member(brief), hidden=run.hidden or brief.hidden)

    def record(self, result: CallResult, brief: SpeakerBrief | None = None) -> None:
        """Keeps a result to which later calls refer."""
        match result:
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
                self._agents = {each.speaker: each for each in members if isinstance(each, AgentPlan)}
            case (
                Pinned(plan=AgentPlan() as agent)
                | Pinned(plan=QueryPlan(targets=(TargetPlan(turn=AgentPlan() as agent),)))
            ):
                self._agents = {agent.speaker: agent}

    def messages(self, call: ActivityCall, result: CallResult) -> tuple[Message, ...]:
        """The messages that a completed call has added to the conversation and that may be shown."""
        if call.hidden:
            return ()
        panel = self.team.panel if self.team else None
        said = said_messages(call, result, self._replies)
        if panel and not panel.visibility.client:
            return tuple(message for message in said if message.part != "deliverable")
        return tuple(said)

    def _with_name(self, call: ActivityCall) -> ActivityCall:
        """The call with the name of its model, tool or function."""
        match call.request:
            case AskModelRequest(speaker=speaker, fallback=fallback) if speaker in self._agents:
                agent = self._agents[speaker]
                return replace(call, name=agent.engine or agent.models[fallback])
            case UseToolRequest(reply=reply, call=number) if reply in self._replies:
                tool_call = self._replies[reply].tool_calls[number]
                return replace(call, name=tool_call.name, arguments=tool_call.arguments, tool_call=tool_call.id)
            case SelectRequest(fallback=fallback) if self.team and self.team.chooser:
                return replace(call, name=self.team.chooser.models[fallback])
            case UseToolRequest(reply=None):
                return replace(call, name=call.speaker)
            case PerformRequest(function=name) | AskPersonRequest(member=name):
                return replace(call, name=name)
        return call

    def _brief_of(self, call: ActivityCall) -> SpeakerBrief | None:
        match call.request:
            case AskModelRequest(brief=brief) | BriefRequest(brief=brief) | PerformRequest(brief=brief):
                return brief
            case UseToolRequest(reply=str(reply)):
                return self._briefs.get(reply)
        return None

    def _member(self, brief: SpeakerBrief) -> str:
        """The name of the panel's member that has the brief; empty for another part."""
        panel = self.team.panel if self.team else None
        return panel.roster[brief.seat] if panel and brief.seat is not None else ""
