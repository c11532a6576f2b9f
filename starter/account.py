"""Which events does one run have? Its own beginning and end, its members' turns, and their calls."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from conversation.errors import Failure
from conversation.message import TokenUsage
from conversation.plan import TeamPlan
from conversation.requests import Asked, AskRequest, Pinned, Selected, SelectRequest, Used, UseRequest
from resources.base import JsonObject
from starter.happenings import Call, CallBegan, CallEnded, Happening, Run, RunBegan, RunEnded, spent

Named = tuple[str, JsonObject]
"""The name of an event, and its data."""

SUBJECTS = {
    "query": "Query",
    "team": "TeamExecution",
    "agent": "AgentExecution",
    "model": "ModelExecution",
    "tool": "ToolExecution",
}
CALLS = {"ask_model": "LLMCall", "use_tool": "ToolCall", "select": "SelectorCall"}


@dataclass
class _Speaker:
    """A member agent that has not ended its turn; ``unanswered`` counts the tool calls of its last words."""

    about: JsonObject
    usage: TokenUsage = field(default_factory=TokenUsage)
    unanswered: int = 0
    ends: bool = False
    failure: Failure | None = None


@dataclass
class Account:
    """What has been seen of a run. ``begun`` are the numbers of its members' turns; several may go on at once."""

    run: Run
    usage: TokenUsage = field(default_factory=TokenUsage)
    max_turns: int | None = None
    begun: set[int] = field(default_factory=set)
    selected: bool = False
    speakers: dict[int, _Speaker] = field(default_factory=dict)
    asked_in: dict[str, int] = field(default_factory=dict)
    ended_by: str | None = None
    last_words: str | None = None

    def spend(self, happening: Happening) -> None:
        """Adds what was spent in the run, or in a child run."""
        usage = spent(happening)
        self.usage += usage
        if speaker := self._speaker(happening):
            speaker.usage += usage

    def events(self, happening: Happening) -> Iterator[Named]:
        """The events that stand for what has happened in the run itself."""
        match happening:
            case RunBegan() if self.run.kind in SUBJECTS:
                yield f"{SUBJECTS[self.run.kind]}{'Received' if self.run.kind == 'query' else 'Started'}", self._about
            case CallBegan(call=call):
                yield from self._call_began(call)
            case CallEnded():
                yield from self._call_ended(happening)
            case RunEnded():
                yield from self._ended(happening)

    def _speaker(self, happening: Happening) -> _Speaker | None:
        """Whose turn a call belongs to; several speak at once in a parallel team."""
        if not isinstance(happening, CallBegan | CallEnded) or happening.run.chain != self.run.chain:
            return None
        match happening.call.request:
            case AskRequest(turn=turn):
                return self.speakers.get(turn)
            case UseRequest(reply=str(reply)):
                return self.speakers.get(self.asked_in.get(reply, 0))
        return None

    def turn_begins(self, member: str, number: int) -> Iterator[Named]:
        """A member's turn begins; events count turns from 0. Where nobody had to choose the member, it says so."""
        if self.run.type == "selector" and not self.selected:
            yield "ParticipantSelected", {**self._about, "member": member, "reason": "only_candidate"}
        self.selected = False
        self.begun.add(number)
        yield "TeamTurn", {"type": "Start", **self._about, "turn": number - 1, "maxTurns": self.max_turns}

    @property
    def _about(self) -> JsonObject:
        run = self.run
        if run.kind == "team":
            return {"team": run.name, "namespace": run.namespace, "strategy": run.type}
        return {run.kind: run.name, "namespace": run.namespace}

    def _call_began(self, call: Call) -> Iterator[Named]:
        if call.effect == "pin" and self.run.kind == "query":
            yield "QueryStarted", self._about
        request = call.request
        if isinstance(request, AskRequest) and self.run.kind == "team" and request.turn not in self.begun:
            _, namespace, agent = request.speaker.split("/")
            yield from self.turn_begins(agent, request.turn)
            names: JsonObject = {"agent": agent, "namespace": namespace, "team": self.run.name}
            speaker = self.speakers[request.turn] = _Speaker({**names, "turn": request.turn - 1})
            yield "AgentExecutionStarted", speaker.about
        if call.effect in CALLS:
            arguments: JsonObject = {"arguments": call.arguments} if call.effect == "use_tool" else {}
            yield f"{CALLS[call.effect]}Started", {**_about(call), **arguments}

    def _call_ended(self, ended: CallEnded) -> Iterator[Named]:
        call = ended.call
        if call.effect == "pin":
            yield from self._pinned(ended)
        if call.effect in CALLS:
            outcome = "Failed" if ended.failure else "Completed" if ended.reply else "Canceled"
            yield f"{CALLS[call.effect]}{outcome}", {**_about(call), "attempts": ended.attempts, **_outcome(ended)}
        if isinstance(ended.reply, Selected):
            self.selected = True
            yield "ParticipantSelected", {**self._about, "member": ended.reply.member, "reason": ended.reply.how}
        if speaker := self._speaker(ended):
            yield from self._answered(speaker, ended)

    def _answered(self, speaker: _Speaker, ended: CallEnded) -> Iterator[Named]:
        """A member's turn is over with words that call for no tool, or with the answers to those that end its team."""
        call, reply, speaker.failure = ended.call, ended.reply, ended.failure
        match reply:
            case Asked(message=message, head=head):
                speaker.unanswered = len(message.tool_calls)
                self.asked_in[head.id] = int(str(speaker.about["turn"])) + 1
            case _ if isinstance(call.request, UseRequest):
                speaker.unanswered -= 1
        if isinstance(reply, Used) and reply.ends:
            speaker.ends = True
            self.ended_by, self.last_words = call.agent, reply.message.content
        if speaker.unanswered == 0 and (speaker.ends or (isinstance(reply, Asked) and not reply.wrong)):
            yield self._fall_silent(speaker, "Completed")

    def _fall_silent(self, speaker: _Speaker, outcome: str, failure: Failure | None = None) -> Named:
        del self.speakers[int(str(speaker.about["turn"])) + 1]
        return f"AgentExecution{outcome}", {**speaker.about, **_failed(failure), **_tokens(speaker.usage)}

    def _pinned(self, ended: CallEnded) -> Iterator[Named]:
        """A run that was started from outside finds its context; a child run is given its own."""
        match ended.reply:
            case Pinned(plan=TeamPlan(max_turns=bound)):
                self.max_turns = bound
        if self.run.parent is None and ended.failure:
            yield "ContextLoadFailed", {**self._about, **_failed(ended.failure)}
        elif self.run.parent is None and isinstance(ended.reply, Pinned):
            yield "ContextLoaded", {**self._about, "messages": ended.reply.thread.head.depth}

    def _ended(self, ended: RunEnded) -> Iterator[Named]:
        silent = [*self.speakers.values()]
        for speaker in silent:
            failure = ended.failure if len(silent) == 1 and not speaker.failure else speaker.failure
            yield self._fall_silent(speaker, "Failed" if failure else "Canceled", failure)
        if self.run.kind == "team" and ended.stop_reason == "max_turns":
            turn = len(self.begun) if ended.turns is None else ended.turns
            yield "TeamTurn", {"type": "MaxTurns", **self._about, "turn": turn, "maxTurns": self.max_turns}
        if self.run.kind == "team" and ended.stop_reason == "terminated":
            reason = ended.note if self.ended_by is None else self.last_words
            yield "TeamTerminated", {**self._about, "member": self.ended_by, "reason": reason}
        if self.run.kind in SUBJECTS:
            how = {"turns": ended.turns, "stopReason": ended.stop_reason, "note": ended.note}
            about = {**self._about, **how, **_failed(ended.failure), **_tokens(self.usage)}
            yield f"{SUBJECTS[self.run.kind]}{ended.phase}", about


def _about(call: Call) -> JsonObject:
    who: JsonObject = {"call": call.id, **({"agent": call.agent} if call.agent else {})}
    match call.request:
        case AskRequest(turn=turn):
            return {**who, "turn": turn - 1, "model": call.what}
        case SelectRequest(turn=turn):
            return {**who, "turn": turn - 1, "model": call.what}
    return {**who, "tool": call.what}


def _outcome(ended: CallEnded) -> JsonObject:
    match ended.reply:
        case Asked(message=message, wrong=wrong):
            calls = [call.name for call in message.tool_calls]
            about: JsonObject = {"content": message.content, "toolCalls": [*calls] or None, "wrong": wrong}
            return {**about, **_tokens(spent(ended))}
        case Used(message=message):
            return {"content": message.content}
        case Selected():
            return _tokens(spent(ended))
    return _failed(ended.failure)


def _failed(failure: Failure | None) -> JsonObject:
    if failure is None:
        return {}
    return {"error": failure.message, "errorType": failure.type, "member": failure.member, "target": failure.target}


def _tokens(usage: TokenUsage) -> JsonObject:
    return {"tokenUsage": usage.model_dump(mode="json")}
