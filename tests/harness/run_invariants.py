"""Checks of what holds for every run of a team, however it ends: bounds, order, counts and events."""

import json
from collections import Counter
from dataclasses import dataclass
from itertools import combinations

from baton.contracts.message import MAX_RECENT, MESSAGE_OVERHEAD, TokenUsage
from baton.contracts.status import Status
from baton.starter.scripted_model import estimate_usage
from tests.harness.environment import Json, texts
from tests.harness.random_teams import AGGREGATOR, TOKEN, Node, RandomTeamModel, is_choice

ENDINGS = ("Completed", "Failed", "Canceled")

LONGEST_MESSAGE = MESSAGE_OVERHEAD + 200
"""Bytes of a random team's message in a status, at most."""


@dataclass
class FinishedRun:
    """A run of a random team that has ended."""

    team: Node
    model: RandomTeamModel
    status: Status
    rows: list[Json]
    events: list[Json]
    answered: list[bool]
    disturbed: bool

    @property
    def calm(self) -> bool:
        """Whether no call was given up: by a signal, or in a parallel team because another member failed."""
        failed = any(e["event"] == "TeamExecutionFailed" and e["strategy"] == "parallel" for e in self.events)
        return not (self.disturbed or failed)

    def metered(self, *, choices: bool) -> list[tuple[int, TokenUsage]]:
        """The usage of each reply, as the model server counted it, with the reply's number."""
        return [
            (number, TokenUsage(**estimate_usage(request, reply)) + TokenUsage(model_calls=1, tool_calls=calls))
            for number, (request, reply) in enumerate(self.model.exchanges)
            if self.answered[number] and (choices or not is_choice(request))
            for calls in [0 if is_choice(request) else len(reply.calls)]
        ]


def check_run(run: FinishedRun) -> None:
    """Makes all checks."""
    check_shown(run)
    check_turns(run)
    check_order(run)
    check_tools(run.rows)
    check_usage(run)
    check_pairs(run.events)


def check_shown(run: FinishedRun) -> None:
    """The status shows what is kept in the conversation: all of it, or of a long one the latest messages."""
    shown, kept = texts(run.status.messages), [row["content"] for row in run.rows[1:]]
    assert shown == kept[len(kept) - len(shown) :]
    assert len(shown) >= min(len(kept), MAX_RECENT // LONGEST_MESSAGE)


def check_turns(run: FinishedRun) -> None:
    """No team takes too many turns, each turn has an event, and there is an error exactly where one is due."""
    nodes = dict(run.team.named())
    begun = Counter(e["run"] for e in run.events if e["event"] == "TeamMemberStarted")
    for end in (event for event in run.events if is_end(event) and event["event"].startswith("TeamExecution")):
        node, reason = nodes[end["team"]], end["stopReason"]
        assert end.get("turns", 0) <= node.bound, end
        assert begun[end["run"]] == end.get("turns") or not run.calm, end
        unwanted = reason == "max_turns" and node.spec.get("onMaxTurns") != "complete"
        assert ("error" in end) == (reason == "failed" or unwanted), end


def check_order(run: FinishedRun) -> None:
    """Each reply is kept once, after all replies that its request held, except between members that run in parallel."""
    received = {f"<{n}>": set(TOKEN.findall(str(request))) for n, (request, _) in enumerate(run.model.exchanges)}
    answers = [
        (mark, row["name"]) for row in run.rows if row["role"] == "assistant" and (mark := token(row["content"]))
    ]
    marks = [mark for mark, _ in answers]
    assert len(marks) == len(set(marks)), "twice in the conversation"
    if run.calm:
        spoken = {f"<{number}>" for number, _ in run.metered(choices=False)}
        assert {mark for mark in marks if not is_choice(run.model.exchanges[int(mark[1:-1])][0])} == spoken
    for (earlier, earlier_speaker), (later, later_speaker) in combinations(answers, 2):
        assert earlier in received[later] or run_in_parallel(run.team, earlier_speaker, later_speaker), (earlier, later)
        assert later not in received[earlier]


def run_in_parallel(team: Node, earlier: str, later: str) -> bool:
    """Whether two members run in parallel, and the first comes before the second in the team's order."""
    places = earlier.split("-"), later.split("-")
    common = next((at for at, indices in enumerate(zip(*places, strict=False)) if len({*indices}) > 1), None)
    if common is None:
        return False
    indices = [place[common] for place in places]
    node = dict(team.named())["-".join(places[0][:common])]
    return node.spec["strategy"] == "parallel" and AGGREGATOR not in indices and indices[0] < indices[1]


def check_tools(rows: list[Json]) -> None:
    """A message with tool calls is followed by their results, each once."""
    waiting: list[str] = []
    for row in rows:
        if row["role"] == "tool":
            waiting.remove(row["toolCallId"])
        else:
            assert not waiting, row
            waiting = [call["id"] for call in row.get("toolCalls", [])]
    assert not waiting


def check_usage(run: FinishedRun) -> None:
    """The run's usage equals that of the model server and that of the events."""
    in_status, counted = run.status.token_usage, run.metered(choices=True)
    kept = {int(token(row["content"])[1:-1]) for row in run.rows if row["role"] == "assistant"}
    least = sum(usage.total_tokens for number, usage in counted if number in kept)
    all_ = sum((usage for _, usage in counted), TokenUsage())
    assert least <= in_status.total_tokens <= all_.total_tokens
    assert in_status == all_ or not run.calm
    (end,) = [e for e in run.events if is_end(e) and e.get("team") == "team" and e["event"].startswith("TeamEx")]
    in_events = TokenUsage.model_validate_json(json.dumps(end["tokenUsage"]))
    if in_status != in_events:  # an answer that comes in the very moment of the end stands in the history alone
        assert not run.calm
        assert all(
            (getattr(in_status, count) or 0) <= (getattr(in_events, count) or 0) for count in TokenUsage.model_fields
        )


def check_pairs(events: list[Json]) -> None:
    """Each start event has one end event, and each end event a start event before it."""
    open_ = Counter[tuple[str, ...]]()
    for event in events:
        base = event["event"].removesuffix("Started") if not is_end(event) else event["event"]
        for ending in ENDINGS:
            base = base.removesuffix(ending)
        key = (event["run"], base, str(event.get("call")), str(event.get("agent")), str(event.get("turn")))
        if event["event"].endswith("Started"):
            open_[key] += 1
        elif is_end(event):
            open_[key] -= 1
        assert open_[key] in (0, 1), event
    assert not any(open_.values()), [key for key, count in open_.items() if count]


def is_end(event: Json) -> bool:
    """Whether an event is an end event."""
    return str(event["event"]).endswith(ENDINGS)


def token(text: str) -> str:
    """The number of a reply of the model."""
    return next(iter(TOKEN.findall(text)), "")
