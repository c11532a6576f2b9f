"""The events of a run: made from its history alone, named as in ARK, in the order of time."""

import asyncio
import dataclasses
import json
import uuid
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

from baton import worker
from baton.resources.loader import Loaded
from baton.starter.history.ark_events import ArkEvent, EventRecorder
from baton.starter.history.decoder import HistoryDecoder
from baton.starter.history.follow import follow
from baton.starter.history.run_events import RunEvent, RunInfo
from baton.starter.history.translator import EventTranslator
from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.converter import DATA_CONVERTER
from tests.harness.environment import Environment, Handle, Json, agent, call, line, team
from tests.replay.recorded import HISTORIES
from tests.replay.scenarios import TRIO, trio


async def decoded(file: Path) -> list[RunEvent]:
    """What has happened in one recorded run."""
    history = WorkflowHistory.from_json("run", await asyncio.to_thread(file.read_text))
    decoder = HistoryDecoder(RunInfo("run", "run"), DATA_CONVERTER)
    return [each for event in history.events for each in await decoder.decode(event)]


async def recorded(name: str) -> list[Json]:
    """The events of one recorded run, without its child runs."""
    occurred, recorder = await decoded(HISTORIES / f"{name}.json"), EventRecorder()
    return [event.value for each in occurred for event in recorder.record(each)]


async def events(client: Client, handle: Handle, *, wait: bool = False) -> list[ArkEvent]:
    """The events of a run and its child runs."""
    recorder, found = EventRecorder(), list[ArkEvent]()

    def on_event(run_event: RunEvent) -> None:
        found.extend(recorder.record(run_event))

    await follow(client, handle, on_event, wait=wait)
    return found


def named(found: list[Json], *names: str) -> list[Json]:
    """The events of those names."""
    return [each for each in found if each["event"] in names]


def short(found: list[ArkEvent]) -> list[str]:
    """The names of the events, with the type of a TeamTurn and the team."""
    return [
        " ".join(filter(None, (each.name, str(each.data.get("type", "")), str(each.data.get("team", "")))))
        for each in found
    ]


NESTED = [
    "QueryReceived",
    "QueryStarted",
    "ContextLoaded",
    "TeamExecutionStarted outer",
    "TeamTurn Start outer",
    "TeamMemberStarted outer",
    "TeamExecutionStarted inner",
    "TeamTurn Start inner",
    "TeamMemberStarted inner",
    "AgentExecutionStarted inner",
    "LLMCallStarted",
    "LLMCallCompleted",
    "ToolCallStarted",
    "ToolCallFailed",
    "LLMCallStarted",
    "LLMCallCompleted",
    "AgentExecutionCompleted inner",
    "TeamMemberCompleted inner",
    "TeamTurn Completed inner",
    "TeamExecutionCompleted inner",
    "TeamMemberCompleted outer",
    "TeamMemberStarted outer",
    "AgentExecutionStarted outer",
    "LLMCallStarted",
    "LLMCallCompleted",
    "ToolCallStarted",
    "ToolCallCompleted",
    "AgentExecutionCompleted outer",
    "TeamMemberCompleted outer",
    "TeamTurn Completed outer",
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
    found = await events(env.client, handle, wait=wait)
    assert short(found) == NESTED
    assert [each.time for each in found] == sorted(each.time for each in found)
    values = [each.value for each in found]
    turns = [(each["team"], each["strategy"], each["type"], each["turn"]) for each in named(values, "TeamTurn")]
    assert turns == [
        ("outer", "round-robin", "Start", 0),
        ("inner", "sequential", "Start", 0),
        ("inner", "sequential", "Completed", 0),
        ("outer", "round-robin", "Completed", 0),
    ]
    members = [(each["member"], each["memberType"], each["turn"]) for each in named(values, "TeamMemberCompleted")]
    assert members == [("one", "agent", 0), ("inner", "team", 0), ("boss", "agent", 0)]
    (failed,) = named(values, "ToolCallFailed")
    assert (failed["tool"], failed["agent"], failed["errorType"]) == ("calculator", "one", "ToolFailed")
    (terminated,) = named(values, "TeamTerminated")
    assert (terminated["member"], terminated["reason"]) == ("boss", "Done.")
    status = await handle.query("status")
    inner, outer = named(values, "TeamExecutionCompleted")
    assert outer["tokenUsage"] == status["tokenUsage"] == values[-1]["tokenUsage"]
    assert (inner["tokenUsage"]["modelCalls"], outer["tokenUsage"]["modelCalls"]) == (2, 3)


class Slow(Interceptor, OutboundInterceptor):
    """A connection that reads the histories of child runs slowly."""

    def __init__(self) -> None:
        """The next interceptor is set with the client."""

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


async def test_the_events_of_a_nested_team_come_before_the_next_event_of_its_parent(
    env: Environment, server: EmbeddedServer
) -> None:
    env.script(line("one", "hello"))
    names = ["first", "second"]
    teams = [team(name, "one", strategy="sequential") for name in names]
    handle = await env.start_team([agent("one"), *teams, team("team", *names, strategy="sequential")])
    slow = await Client.connect(server.address, data_converter=DATA_CONVERTER, interceptors=[Slow()])
    found = [each.value for each in await events(slow, handle, wait=True)]
    inner = named(found, "TeamExecutionStarted", "TeamExecutionCompleted")
    assert [each["team"] for each in inner] == ["team", "first", "first", "second", "second", "team"]


async def test_a_turn_of_a_round_robin_is_a_round_and_the_event_of_the_limit_comes_before_the_failure() -> None:
    found = await recorded("max_turns.1.round-robin")
    turns = named(found, "TeamTurn")
    assert [(each["type"], each["turn"]) for each in turns] == [
        *[("Start", 0), ("Completed", 0), ("Start", 1), ("Completed", 1), ("Start", 2), ("Completed", 2)],
        ("MaxTurns", 3),
    ]
    assert {(each["team"], each["strategy"], each["maxTurns"]) for each in turns} == {("team", "round-robin", 3)}
    assert turns[1]["members"] == ["brainstormer", "critic", "coordinator"]
    assert turns[1]["tokenUsage"]["modelCalls"] == 3
    assert [(each["member"], each["turn"]) for each in named(found, "TeamMemberStarted")][2:5] == [
        ("coordinator", 0),
        ("brainstormer", 1),
        ("critic", 1),
    ]
    assert {each["turn"] for each in named(found, "LLMCallStarted", "AgentExecutionStarted")} == {0, 1, 2}
    assert [each["event"] for each in found[-2:]] == ["TeamTurn", "TeamExecutionFailed"]
    assert found[-1]["error"] == "team round-robin MaxTurns reached team"
    assert found[-1]["tokenUsage"]["modelCalls"] == 9


async def test_a_failed_call_has_its_error_in_the_events_of_the_call_the_agent_and_the_team() -> None:
    found = await recorded("failed_member.1.round-robin")
    failed = [(each["event"], each["errorType"]) for each in found if "error" in each]
    assert failed == [
        ("LLMCallFailed", "ModelRejected"),
        ("AgentExecutionFailed", "ModelRejected"),
        ("TeamMemberFailed", "ModelRejected"),
        ("TeamTurn", "ModelRejected"),
        ("TeamExecutionFailed", "ModelRejected"),
    ]
    assert "answered HTTP 400: no such thing" in found[-1]["error"]
    assert (found[-1]["member"], found[-3]["member"], found[-4]["agent"]) == ("coordinator",) * 3
    assert (found[-2]["type"], found[-2]["members"]) == ("Failed", ["brainstormer", "critic", "coordinator"])


async def test_a_model_call_that_succeeds_at_the_third_attempt_is_one_call_with_three_attempts() -> None:
    found = await recorded("retried_model.1.agent")
    assert [each["event"] for each in found] == [
        "AgentExecutionStarted",
        "ContextLoaded",
        "LLMCallStarted",
        "LLMCallCompleted",
        "AgentExecutionCompleted",
    ]
    assert (found[3]["attempts"], found[3]["content"]) == (3, "At last.")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "terminated_by_a_member.1.round-robin",
            {"event": "TeamTerminated", "member": "coordinator", "reason": "Done."},
        ),
        ("terminated_by_signal.1.round-robin", {"event": "TeamTerminated", "member": None, "reason": "enough"}),
        ("terminated_now.1.round-robin", {"event": "TeamTerminated", "member": None, "reason": "enough"}),
        ("terminated_now.1.round-robin", {"event": "AgentExecutionCanceled", "agent": "critic", "turn": 1}),
        ("canceled.1.round-robin", {"event": "LLMCallCanceled", "agent": "critic"}),
        ("canceled.1.round-robin", {"event": "TeamMemberCanceled", "member": "critic", "turn": 1}),
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
    found = await recorded(name)
    (event,) = named(found, expected["event"])
    assert {key: event.get(key) for key in expected} == expected


def is_over(file: Path) -> bool:
    """Whether a run has ended, and has not continued as new; what only deletes a query or tells of it has no events."""
    is_continued = "EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW" in file.read_text()
    return not is_continued and file.name.split(".")[-2] not in ("expire", "notify")


@pytest.mark.parametrize("file", [*filter(is_over, sorted(HISTORIES.glob("*.json")))], ids=lambda file: file.stem)
async def test_everything_that_has_started_in_a_closed_run_has_ended_once(file: Path) -> None:
    found = await recorded(file.stem)
    for what in ("AgentExecution", "LLMCall", "ToolCall", "TeamExecution", "TeamMember"):
        began = named(found, f"{what}Started")
        ends = (f"{what}{end}" for end in ("Completed", "Failed", "Canceled", "Deferred"))
        assert len(began) == len(named(found, *ends)), what
    turns = [(each["type"], each["turn"]) for each in named(found, "TeamTurn") if each["type"] != "MaxTurns"]
    assert len(turns) == len({*turns})
    assert len([kind for kind, _ in turns if kind == "Start"]) == len([kind for kind, _ in turns if kind != "Start"])


@pytest.mark.parametrize("file", [*filter(is_over, sorted(HISTORIES.glob("*.json")))], ids=lambda file: file.stem)
async def test_every_turn_of_a_closed_run_begins_and_ends_once_in_the_typed_stream(file: Path) -> None:
    occurred, translator = await decoded(file), EventTranslator(RunInfo("run", "run"))
    open_turns: list[tuple[object, ...]] = []
    begun = set[tuple[object, ...]]()
    for event in (event for each in occurred for event in translator.translate(each)):
        if event.type == "turn.started":
            turn = event.speaker, event.turn, event.round, event.part
            assert turn not in begun
            begun.add(turn)
            open_turns.append(turn)
        elif event.type == "turn.ended":
            open_turns.remove((event.speaker, event.turn, event.round, event.part))
    assert open_turns == []


async def test_a_model_and_a_tool_that_are_targets_themselves_have_events_without_an_agent() -> None:
    found: dict[str, list[str]] = {}
    for file in sorted(HISTORIES.glob("query_of_model_and_tool.*")):
        events = await recorded(file.stem)
        assert not any("agent" in each for each in events)
        found.setdefault(file.name.split(".")[2], []).append(" ".join(each["event"] for each in events))
    assert found["model"] == [
        "ModelExecutionStarted ContextLoaded LLMCallStarted LLMCallCompleted ModelExecutionCompleted"
    ]
    assert sorted(found["tool"]) == [
        "ToolExecutionStarted ContextLoaded ToolCallStarted ToolCallCompleted ToolExecutionCompleted",
        "ToolExecutionStarted ContextLoaded ToolCallStarted ToolCallFailed ToolExecutionFailed",
    ]


async def test_an_event_before_each_turn_names_the_selected_member_and_the_reason() -> None:
    found = named(await recorded("selector.1.selector"), "ParticipantSelected", "TeamTurn", "SelectorCallCompleted")
    assert [(each["event"], each.get("member"), each.get("reason")) for each in found[:5]] == [
        ("SelectorCallCompleted", None, None),
        ("ParticipantSelected", "critic", "matched"),
        ("TeamTurn", None, None),
        ("TeamTurn", None, None),
        ("ParticipantSelected", "brainstormer", "only_candidate"),
    ]
    assert found[0]["tokenUsage"]["modelCalls"] == 1


async def test_an_event_is_json_with_its_time_and_a_tools_name_and_arguments() -> None:
    found = await recorded("agent_with_tools.1.agent")
    assert all(each["time"].endswith("Z") and "." in each["time"] for each in found)
    assert json.loads(json.dumps(found)) == found
    (started, *_) = named(found, "ToolCallStarted")
    assert (started["tool"], json.loads(started["arguments"])) == ("calculator", {"expression": "6*7"})
    failed = named(found, "ToolCallFailed")
    assert [(each["tool"], each["errorType"]) for each in failed] == [("unknown", "UnknownTool")]


async def test_the_events_of_an_open_run_end_with_its_latest_one(env: Environment) -> None:
    trio(env, slow=60)
    handle = await env.start_team([*TRIO, team("team", "brainstormer", "critic", maxTurns=2)])
    await env.wait_for_calls(4)
    found = short(await events(env.client, handle))
    assert found[-3:] == ["TeamMemberStarted team", "AgentExecutionStarted team", "LLMCallStarted"]
    await handle.terminate()
    found = short(await events(env.client, handle))
    assert found[-4:] == [
        "AgentExecutionFailed team",
        "TeamMemberFailed team",
        "TeamTurn Failed team",
        "TeamExecutionFailed team",
    ]


async def test_every_turn_of_a_parallel_team_has_an_event_even_if_a_member_that_is_a_team_starts_later(
    env: Environment,
) -> None:
    env.script(line("a", "a"), line("b", "b"), line("c", "c"))
    inner = team("inner", "b", strategy="sequential")
    outer = team("outer", "inner", "a", strategy="parallel", aggregator="c")
    handle = await env.start_team([agent("a"), agent("b"), agent("c"), inner, outer], "outer")
    await handle.result()
    found = [each.value for each in await events(env.client, handle)]
    began = [each for each in named(found, "TeamTurn") if (each["team"], each["type"]) == ("outer", "Start")]
    assert sorted(each["turn"] for each in began) == [0, 1, 2]
    ended = [each for each in named(found, "AgentExecutionCompleted") if each["team"] == "outer"]
    assert [(each["agent"], each["turn"]) for each in ended] == [("a", 1), ("c", 2)]


async def test_the_calls_of_an_agent_that_is_executed_elsewhere_name_its_engine() -> None:
    found = named(await recorded("executed_elsewhere.1.sequential"), "ExecutorCallStarted", "ExecutorCallCompleted")
    assert [each["event"] for each in found] == ["ExecutorCallStarted", "ExecutorCallCompleted"] * 2
    assert {(each["agent"], each["engine"], each["turn"]) for each in found} == {("remote", "far", 0)}
    assert [each.get("content") for each in found if "content" in each] == ["no", '{"ok": true}']
    turns = named(await recorded("executed_elsewhere.1.sequential"), "AgentExecutionCompleted")
    assert [(each["agent"], each["tokenUsage"]["modelCalls"]) for each in turns] == [("remote", 2), ("critic", 1)]


@pytest.mark.full
async def test_a_tool_call_that_is_given_up_before_any_worker_has_it_counts_neither_in_the_status_nor_in_the_events(
    env: Environment,
) -> None:
    env.script(line("one", call("noop", message="x")))
    other = dataclasses.replace(env, task_queue=uuid.uuid4().hex)
    queues = {f"BATON_{kind}_TASK_QUEUE": f"{other.task_queue}-{kind}" for kind in ("MODEL", "TOOL")}
    variables = {**other.worker_env, **queues, "BATON_ROLES": "workflows,models"}
    async with worker.run_worker(env.client, Loaded(), variables):
        handle = await other.start_team([agent("one", "noop"), team("team", "one", strategy="sequential")])
        while not any(is_tool_call(event) for event in (await handle.fetch_history()).events):
            await asyncio.sleep(0.02)
        await handle.signal("terminate_team", {"now": True})
        turn = await other.turn_result(handle)
    [end] = named([each.value for each in await events(env.client, handle)], "TeamExecutionCompleted")
    assert (turn.usage.model_calls, turn.usage.tool_calls) == (1, 0)
    assert end["tokenUsage"] == turn.usage.model_dump(mode="json")


def is_tool_call(event: HistoryEvent) -> bool:
    """Whether a history event is the beginning of a tool call."""
    return event.activity_task_scheduled_event_attributes.activity_type.name == "use_tool"


async def test_a_conversation_that_is_read_and_kept_has_events_without_its_messages() -> None:
    found = [each for each in await recorded("memory.1.query") if each["event"].startswith("Memory")]
    names = "MemoryGetMessagesStarted", "MemoryGetMessagesCompleted", "MemoryAddMessagesStarted"
    assert [each["event"] for each in found] == [*names, "MemoryAddMessagesCompleted"]
    assert {(each["memory"], each["conversation"]) for each in found} == {("m", "c")}
