"""The events of a run: made of its history alone, named as in ARK, in the order in which things happened."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import (
    Client,
    FetchWorkflowHistoryEventsInput,
    Interceptor,
    OutboundInterceptor,
    WorkflowHistory,
    WorkflowHistoryEventAsyncIterator,
)

from baton.conversation.temporal.temporal_client import DATA_CONVERTER
from baton.starter.history.events import Event, EventRecorder
from baton.starter.history.follow import follow
from baton.starter.history.history_decoder import HistoryDecoder
from baton.starter.history.run_events import RunEvent, RunInfo
from baton.starter.server.embedded import EmbeddedServer
from tests.harness.environment import Environment, Handle, Json, agent, call, line, team
from tests.replay.recorded import HISTORIES
from tests.replay.scenarios import TRIO, trio


async def recorded(name: str) -> list[Json]:
    """The events of one recorded run, without its child runs."""
    text = (HISTORIES / f"{name}.json").read_text()
    history = WorkflowHistory.from_json("run", text)
    reader, recorder = HistoryDecoder(RunInfo("run", "run"), DATA_CONVERTER), EventRecorder()
    happenings = [each for event in history.events for each in await reader.decode(event)]
    return [event.value for each in happenings for event in recorder.record(each)]


async def events(client: Client, handle: Handle, *, wait: bool = False) -> list[Event]:
    """The events of a run and its child runs."""
    recorder, told = EventRecorder(), list[Event]()

    def tell(happening: RunEvent) -> None:
        told.extend(recorder.record(happening))

    await follow(client, handle, tell, wait=wait)
    return told


def named(told: list[Json], *names: str) -> list[Json]:
    """The events of those names."""
    return [each for each in told if each["event"] in names]


def short(told: list[Event]) -> list[str]:
    """The events' names, with the team that a team's belong to."""
    return [
        " ".join(filter(None, (each.name, str(each.data.get("type", "")), str(each.data.get("team", "")))))
        for each in told
    ]


NESTED = [
    "QueryReceived",
    "QueryStarted",
    "ContextLoaded",
    "TeamExecutionStarted outer",
    "TeamTurn Start outer",
    "TeamExecutionStarted inner",
    "TeamTurn Start inner",
    "AgentExecutionStarted inner",
    "LLMCallStarted",
    "LLMCallCompleted",
    "ToolCallStarted",
    "ToolCallFailed",
    "LLMCallStarted",
    "LLMCallCompleted",
    "AgentExecutionCompleted inner",
    "TeamExecutionCompleted inner",
    "TeamTurn Start outer",
    "AgentExecutionStarted outer",
    "LLMCallStarted",
    "LLMCallCompleted",
    "ToolCallStarted",
    "ToolCallCompleted",
    "AgentExecutionCompleted outer",
    "TeamTerminated outer",
    "TeamExecutionCompleted outer",
    "QueryCompleted",
]


@pytest.mark.parametrize("wait", [True, False], ids=["while it runs", "afterwards"])
async def test_a_team_with_a_nested_team_a_tool_and_an_end_has_its_events_in_order(
    env: Environment, wait: bool
) -> None:
    env.script(
        line("one", call("calculator", expression="1/0"), "I can't."), line("boss", call("terminate", response="Done."))
    )
    teams = [
        team("inner", "one", strategy="sequential"),
        team("outer", "inner", "boss", maxTurns=2),
    ]
    handle = await env.start_query([agent("one", "calculator"), agent("boss", "terminate"), *teams], "team/outer")
    if not wait:
        await env.status(handle)
    told = await events(env.client, handle, wait=wait)
    assert short(told) == NESTED
    assert [each.time for each in told] == sorted(each.time for each in told)
    values = [each.value for each in told]
    starts = [(each["team"], each["strategy"], each["turn"]) for each in named(values, "TeamTurn")]
    assert starts == [("outer", "round-robin", 0), ("inner", "sequential", 0), ("outer", "round-robin", 1)]
    (failed,) = named(values, "ToolCallFailed")
    assert (failed["tool"], failed["agent"], failed["errorType"]) == ("calculator", "one", "ToolFailed")
    (terminated,) = named(values, "TeamTerminated")
    assert (terminated["member"], terminated["reason"]) == ("boss", "Done.")
    status = await handle.query("status")
    inner, outer = named(values, "TeamExecutionCompleted")
    assert outer["tokenUsage"] == status["tokenUsage"] == values[-1]["tokenUsage"]
    assert (inner["tokenUsage"]["modelCalls"], outer["tokenUsage"]["modelCalls"]) == (2, 3)


class Slow(Interceptor, OutboundInterceptor):
    """A connection that is slow to bring the histories of child runs."""

    def __init__(self) -> None:
        """The next interceptor comes with the client."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002
        OutboundInterceptor.__init__(self, next)
        return self

    def fetch_workflow_history_events(
        self,
        input: FetchWorkflowHistoryEventsInput,  # noqa: A002
    ) -> WorkflowHistoryEventAsyncIterator:
        slowly = self._slowly(super().fetch_workflow_history_events(input))
        return cast(WorkflowHistoryEventAsyncIterator, slowly)

    async def _slowly(self, events: WorkflowHistoryEventAsyncIterator) -> AsyncIterator[HistoryEvent]:
        await asyncio.sleep(0.5 * (events._input.id.count("/")))
        async for event in events:
            yield event


async def test_what_a_nested_team_does_is_told_before_what_its_parent_does_next(
    env: Environment, server: EmbeddedServer
) -> None:
    env.script(line("one", "hello"))
    names = ["first", "second"]
    teams = [team(name, "one", strategy="sequential") for name in names]
    handle = await env.start_team([agent("one"), *teams, team("team", *names, strategy="sequential")])
    slow = await Client.connect(server.address, data_converter=DATA_CONVERTER, interceptors=[Slow()])
    told = [each.value for each in await events(slow, handle, wait=True)]
    inner = named(told, "TeamExecutionStarted", "TeamExecutionCompleted")
    assert [each["team"] for each in inner] == ["team", "first", "first", "second", "second", "team"]


async def test_turns_count_from_0_and_the_bound_is_told_before_the_failure() -> None:
    told = await recorded("max_turns.1.round-robin")
    starts = named(told, "TeamTurn")
    assert [each["type"] for each in starts] == ["Start"] * 9 + ["MaxTurns"]
    assert [each["turn"] for each in starts] == [*range(9), 9]
    assert {(each["team"], each["strategy"], each["maxTurns"]) for each in starts} == {("team", "round-robin", 3)}
    assert [each["event"] for each in told[-2:]] == ["TeamTurn", "TeamExecutionFailed"]
    assert told[-1]["error"] == "team round-robin MaxTurns reached team"
    assert told[-1]["tokenUsage"]["modelCalls"] == 9


async def test_a_call_that_fails_is_told_with_its_error_up_to_the_team() -> None:
    told = await recorded("failed_member.1.round-robin")
    failed = [(each["event"], each["errorType"]) for each in told if "error" in each]
    assert failed == [
        ("LLMCallFailed", "ModelRejected"),
        ("AgentExecutionFailed", "ModelRejected"),
        ("TeamExecutionFailed", "ModelRejected"),
    ]
    assert "answered HTTP 400: no such thing" in told[-1]["error"]
    assert (told[-1]["member"], told[-2]["agent"]) == ("coordinator", "coordinator")


async def test_a_model_that_answers_at_the_third_attempt_has_one_call_of_three_attempts() -> None:
    told = await recorded("retried_model.1.agent")
    assert [each["event"] for each in told] == [
        "AgentExecutionStarted",
        "ContextLoaded",
        "LLMCallStarted",
        "LLMCallCompleted",
        "AgentExecutionCompleted",
    ]
    assert (told[3]["attempts"], told[3]["content"]) == (3, "At last.")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "terminated_by_a_member.1.round-robin",
            {"event": "TeamTerminated", "member": "coordinator", "reason": "Done."},
        ),
        ("terminated_by_signal.1.round-robin", {"event": "TeamTerminated", "member": None, "reason": "enough"}),
        ("terminated_now.1.round-robin", {"event": "TeamTerminated", "member": None, "reason": "enough"}),
        ("terminated_now.1.round-robin", {"event": "AgentExecutionCanceled", "agent": "critic", "turn": 4}),
        ("canceled.1.round-robin", {"event": "LLMCallCanceled", "agent": "critic"}),
        ("canceled.1.round-robin", {"event": "TeamExecutionCanceled", "team": "team"}),
        ("query_canceled.1.query", {"event": "QueryCanceled", "query": "q"}),
        ("query_timeout.1.query", {"event": "QueryFailed", "stopReason": "timeout", "errorType": "QueryTimeout"}),
        ("refused.1.query", {"event": "ContextLoadFailed", "errorType": "InvalidManifest"}),
        ("refused.1.query", {"event": "QueryFailed", "errorType": "InvalidManifest"}),
        ("query.1.query", {"event": "QueryFailed", "errorType": "MaxTurnsReached", "target": "team/team"}),
    ],
    ids=lambda value: value["event"] if isinstance(value, dict) else value.split(".")[0],
)
async def test_every_way_to_end_has_its_event(name: str, expected: Json) -> None:
    told = await recorded(name)
    (event,) = named(told, expected["event"])
    assert {key: event.get(key) for key in expected} == expected


def is_over(file: Path) -> bool:
    """Whether a run came to its end, and didn't go on in a new one."""
    return "EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW" not in file.read_text()


@pytest.mark.parametrize("file", [*filter(is_over, sorted(HISTORIES.iterdir()))], ids=lambda file: file.stem)
async def test_whatever_begins_in_a_run_that_is_over_ends_once(file: Path) -> None:
    told = await recorded(file.stem)
    for what in ("AgentExecution", "LLMCall", "ToolCall", "TeamExecution"):
        began = named(told, f"{what}Started")
        assert len(began) == len(named(told, *(f"{what}{end}" for end in ("Completed", "Failed", "Canceled")))), what


async def test_a_model_and_a_tool_that_are_asked_by_themselves_have_events_without_an_agent() -> None:
    told: dict[str, list[str]] = {}
    for file in sorted(HISTORIES.glob("query_of_model_and_tool.*")):
        events = await recorded(file.stem)
        assert not any("agent" in each for each in events)
        told.setdefault(file.name.split(".")[2], []).append(" ".join(each["event"] for each in events))
    assert told["model"] == [
        "ModelExecutionStarted ContextLoaded LLMCallStarted LLMCallCompleted ModelExecutionCompleted"
    ]
    assert sorted(told["tool"]) == [
        "ToolExecutionStarted ContextLoaded ToolCallStarted ToolCallCompleted ToolExecutionCompleted",
        "ToolExecutionStarted ContextLoaded ToolCallStarted ToolCallFailed ToolExecutionFailed",
    ]


async def test_whom_a_selector_chose_and_why_is_told_before_each_turn() -> None:
    told = named(await recorded("selector.1.selector"), "ParticipantSelected", "TeamTurn", "SelectorCallCompleted")
    assert [(each["event"], each.get("member"), each.get("reason")) for each in told[:5]] == [
        ("SelectorCallCompleted", None, None),
        ("ParticipantSelected", "critic", "matched"),
        ("TeamTurn", None, None),
        ("ParticipantSelected", "brainstormer", "only_candidate"),
        ("TeamTurn", None, None),
    ]
    assert told[0]["tokenUsage"]["modelCalls"] == 1


async def test_an_event_is_json_with_its_time_and_a_tools_name_and_arguments() -> None:
    told = await recorded("agent_with_tools.1.agent")
    assert all(each["time"].endswith("Z") and "." in each["time"] for each in told)
    assert json.loads(json.dumps(told)) == told
    (started, *_) = named(told, "ToolCallStarted")
    assert (started["tool"], json.loads(started["arguments"])) == ("calculator", {"expression": "6*7"})
    failed = named(told, "ToolCallFailed")
    assert [(each["tool"], each["errorType"]) for each in failed] == [("unknown", "UnknownTool")]


async def test_the_events_of_a_run_that_goes_on_end_where_it_stands(env: Environment) -> None:
    trio(env, slow=3)
    handle = await env.start_team([*TRIO, team("team", "brainstormer", "critic", maxTurns=2)])
    await env.wait_for_calls(4)
    told = short(await events(env.client, handle))
    assert told[-3:] == ["TeamTurn Start team", "AgentExecutionStarted team", "LLMCallStarted"]
    await handle.terminate()
    told = short(await events(env.client, handle))
    assert told[-2:] == ["AgentExecutionFailed team", "TeamExecutionFailed team"]


async def test_every_turn_of_a_parallel_team_is_told_though_a_team_among_its_members_begins_later(
    env: Environment,
) -> None:
    env.script(line("a", "a"), line("b", "b"), line("c", "c"))
    inner = team("inner", "b", strategy="sequential")
    outer = team("outer", "inner", "a", strategy="parallel", aggregator="c")
    handle = await env.start_team([agent("a"), agent("b"), agent("c"), inner, outer], "outer")
    await handle.result()
    told = [each.value for each in await events(env.client, handle)]
    began = [each for each in named(told, "TeamTurn") if each["team"] == "outer"]
    assert sorted(each["turn"] for each in began) == [0, 1, 2]
    ended = [each for each in named(told, "AgentExecutionCompleted") if each["team"] == "outer"]
    assert [(each["agent"], each["turn"]) for each in ended] == [("a", 1), ("c", 2)]
