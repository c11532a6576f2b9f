"""The Python interface: definitions, runs, their messages and results."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import yaml
from pydantic import BaseModel
from temporalio.client import Client
from temporalio.service import RetryConfig

import baton
from baton import Agent, Connection, Member, Model, Query, Team, round_robin
from baton.contracts.message import TokenUsage
from baton.resources.model import Model as ModelManifest
from baton.starter.api.client import query_for
from baton.starter.api.definitions import load_definitions
from baton.starter.api.handle import stream_messages
from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.converter import DATA_CONVERTER
from baton.temporal.executions import first_run_id
from baton.testing import ScriptLine
from tests.harness.environment import KEY, Environment, call, line
from tests.harness.panels import SYNTHESIS, model_requests, panelist_line, prompt_line, role_member
from tests.harness.tcp_proxy import TcpProxy


@pytest_asyncio.fixture(loop_scope="session")
async def temporal(
    env: Environment, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Connection]:
    """A connection of a program to the session's server; the stage's worker works on what needs no functions."""
    for name, value in env.worker_env.items():
        monkeypatch.setenv(name, value)
    async with baton.connect(server.address, task_queue=env.task_queue) as connection:
        yield connection


def say_all(env: Environment) -> None:
    env.script(
        panelist_line("writer", "w1", "w2"),
        panelist_line("editor", "e1", "e2"),
        prompt_line("You are the referee", '{"critique": "Be brief."}'),
        SYNTHESIS,
    )


async def test_runs_of_one_conversation_go_on_from_each_other(env: Environment, temporal: Connection) -> None:
    env.script(line("one", "I am one.", "As I said."))
    for question in ("Who are you?", "Again?"):
        await temporal.run(Agent("one", prompt="You are one."), question, conversation="c")
    asked = [each["content"] for each in env.model.requests[-1].body["messages"][1:]]
    assert asked == ["Who are you?", "I am one.", "Again?"]
    query = Query("q", "Why?", targets=[Agent("one", prompt="You are one.")], conversation="c")
    assert "'conversationId': 'c'" in str(query.manifest)
    with pytest.raises(TypeError, match="pass the conversation to the Query"):
        await temporal.run(query, conversation="d")


def test_a_panel_from_python_is_the_manifest_that_a_file_would_hold() -> None:
    def enough(briefing: baton.Briefing) -> bool:
        return briefing.round == 2

    made = round_robin(
        name="panel",
        roster=[
            {"name": "writer", "role": "a writer"},
            Member("editor", role="an editor"),
            Agent("sage", prompt="You are wise."),
            Member("fool", role="ignored", speaker=Agent("jester", prompt="You jest.")),
        ],
        referee=True,
        terminate_when=enough,
        synthesizer=False,
        instructions={"function": "tone", "parameters": {"how_much": 2}},
        context_window={"max_messages": 3},
        contributions={"session": "desk", "key": "panel"},
    )
    assert made.manifest == yaml.safe_load("""
        apiVersion: ark.mckinsey.com/v1alpha1
        kind: Team
        metadata: {name: panel, namespace: default}
        spec:
          strategy: round-robin
          members:
            - {name: writer, role: a writer, type: default}
            - {name: editor, role: an editor, type: default}
            - {name: sage, namespace: default, type: agent}
            - {name: jester, namespace: default, type: agent, as: fool}
          maxRounds: 5
          referee: true
          terminateWhen: {function: enough}
          synthesizer: false
          instructions: {function: tone, parameters: {how_much: 2}}
          contextWindow: {maxMessages: 3}
          contributions: {session: desk, key: panel}
    """)
    assert [each.id for each in load_definitions([made]).catalog.manifests] == [
        "Agent/default/jester",
        "Agent/default/sage",
        "Team/default/panel",
    ]
    assert made.functions() == (enough,)


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({"roster": []}, "at least 1 entry"),
        ({"roster": ["a", {"name": "a"}]}, "duplicate roster name 'a'"),
        ({"roster": [{"name": ""}]}, "spec.members[0].name"),
        ({"roster": [{"name": "  "}]}, "spec.members[0].name"),
        ({"roster": [{"role": "nobody"}]}, "spec.members[0].name: is missing"),
        ({"name": ""}, "metadata.name"),
        ({"max_rounds": 0}, "spec.maxRounds"),
        ({"max_rounds": True}, "spec.maxRounds"),
        ({"max_rounds": 2.5}, "spec.maxRounds"),
        ({"synthesizer": False, "output_schema": {"type": "object"}}, "spec.outputSchema"),
        ({"terminate_when": "round >="}, "spec.terminateWhen"),
        ({"roster": [{"name": "a", "rôle": "?"}]}, "is not a field of Member"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_a_wrong_panel_is_refused_with_the_loaders_message(given: dict[str, Any], refusal: str) -> None:
    with pytest.raises(baton.ManifestError, match="(?s)" + refusal.replace("[", r"\[").replace("]", r"\]")):
        round_robin(**{"name": "panel", "roster": ["a"], **given})


def test_a_debate_needs_two_stances() -> None:
    with pytest.raises(baton.ManifestError, match="at least 2 entries"):
        baton.debate("debate", [{"name": "a", "stance": "yes"}])
    with pytest.raises(baton.ManifestError, match="needs a non-empty stance"):
        baton.debate("debate", [Member("a", stance="yes"), Member("b", stance=" ")])


def test_an_unknown_option_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"round_robin\(\) got an unexpected keyword argument 'rounds'"):
        round_robin("panel", ["a"], rounds=2)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"Agent\(\) got an unexpected keyword argument 'promt'"):
        Agent("a", prompt="p", promt="p")  # type: ignore[call-overload]


async def test_settings_of_a_model_and_of_an_agent_are_numbers_that_its_server_receives(
    env: Environment, temporal: Connection
) -> None:
    env.script(line("one", "I am one."))
    model = Model(
        "m", model="gpt", base_url=env.model_url, temperature=0.9, seed=7, properties={"store": False, "user": "me"}
    )
    one = Agent("one", prompt="You are one.", model=model, temperature=0.2, reasoning_effort="low", stop=["END"])
    await temporal.run(one, "Who are you?")
    expected = {"temperature": 0.2, "seed": 7, "reasoning_effort": "low", "stop": ["END"], "store": False, "user": "me"}
    assert env.model.requests[-1].body.items() >= expected.items()
    with pytest.raises(TypeError, match=r"Model\(\) got an unexpected keyword argument 'temprature'"):
        Model("m", model="gpt", temprature=1)  # type: ignore[call-arg]


def test_the_retries_of_a_model_can_be_given_in_python() -> None:
    model = Model("m", model="gpt", retry_policy={"maximum_attempts": 3, "initial_interval": "2s"})
    (given,) = load_definitions([model]).catalog.manifests
    assert isinstance(given, ModelManifest)
    assert given.spec.retry_policy
    assert (given.spec.retry_policy.maximum_attempts, given.spec.retry_policy.initial_seconds) == (3, 2)


def test_budgets_and_prices_can_be_given_in_python() -> None:
    model = Model("m", model="gpt", pricing={"input": 1, "output": 2, "cached_input": 0.5})
    one = Agent("a", prompt="You answer.", model=model, budget={"model_calls": 2})
    both = Team("t", strategy="sequential", members=[one], budget={"cost": 0.5, "on_exceeded": "fail"})
    query = query_for(both, "Why?", {"budget": {"tokens": 5, "duration": "1m"}})
    budgets = {each.kind: each.budget for each in load_definitions([query]).catalog.manifests if each.budget}
    assert {kind: budget.model_dump(exclude_unset=True) for kind, budget in budgets.items()} == {
        "Agent": {"modelCalls": 2},
        "Team": {"cost": 0.5, "onExceeded": "fail"},
        "Query": {"tokens": 5, "duration": "1m"},
    }


async def test_a_run_needs_an_input_and_takes_no_unknown_option() -> None:
    with pytest.raises(TypeError, match="panel needs an input"):
        await baton.run(round_robin("panel", ["a"]))
    with pytest.raises(TypeError, match="there is no option 'nmae'"):
        await baton.run(round_robin("panel", ["a"]), "Why?", nmae="x")  # type: ignore[call-overload]


def test_two_functions_by_one_name_are_refused() -> None:
    panel = round_robin("panel", ["a"], terminate_when=lambda _: True, instructions=lambda _: "Be kind.")
    with pytest.raises(ValueError, match="two functions have the name '<lambda>'"):
        panel.functions()


async def test_a_panel_runs_and_gives_its_deliverable_and_what_it_has_cost(
    env: Environment, temporal: Connection
) -> None:
    say_all(env)
    panel = round_robin("panel", [role_member("writer"), role_member("editor")], max_rounds=2, referee=True)
    result = await temporal.run(panel, input="Why?")
    assert (result.message, result.value, result.status.phase) == ("The deliverable.", "The deliverable.", "Completed")
    assert isinstance(result.usage, TokenUsage)
    assert result.usage.model_calls == 7
    assert result.id.startswith("panel-")


async def test_a_panel_without_a_synthesizer_gives_its_shape(env: Environment, temporal: Connection) -> None:
    say_all(env)
    panel = round_robin(
        "panel", [role_member("writer"), role_member("editor")], max_rounds=1, referee=True, synthesizer=False
    )
    result = await temporal.run(panel, input="Why?")
    assert result.value == baton.PanelShape(
        rounds=1,
        contributions=(
            baton.Contribution(round=1, agent_name="writer", text="w1"),
            baton.Contribution(round=1, agent_name="editor", text="e1"),
        ),
        referee_critiques=(baton.Critique(round=1, critique="Be brief."),),
    )


class Report(BaseModel):
    """What a panel delivers here."""

    go: bool
    reasons: list[str]


async def test_a_pydantic_model_is_what_the_deliverable_is_read_into(env: Environment, temporal: Connection) -> None:
    env.script(panelist_line("writer", "w1"), prompt_line("You write what", '{"go": true, "reasons": ["w1"]}'))
    panel = round_robin("panel", [role_member("writer")], max_rounds=1, output_schema=Report)
    assert (await temporal.run(panel, input="Why?")).value == Report(go=True, reasons=["w1"])
    schema = Report.model_json_schema()
    other = round_robin("panel", [role_member("writer")], max_rounds=1, output_schema=schema)
    assert (await temporal.run(other, input="Why?")).value == {"go": True, "reasons": ["w1"]}


async def test_a_debate_gives_its_verdict(env: Environment, temporal: Connection) -> None:
    env.script(
        panelist_line("dove", "Wait."),
        panelist_line("hawk", "Go."),
        prompt_line("You judge a debate", '{"verdict": "Go.", "winner": "go", "reasoning": "Better argued."}'),
    )
    duel = baton.debate(
        "duel", [Member("dove", stance="wait"), Member("hawk", stance="go")], max_rounds=1, synthesizer=False
    )
    value = (await temporal.run(duel, input="Go or wait?")).value
    assert isinstance(value, baton.DebateShape)
    assert value.verdict == baton.Verdict(verdict="Go.", winner="go", reasoning="Better argued.")


@pytest.mark.full
async def test_functions_need_no_registration(env: Environment, temporal: Connection) -> None:
    env.script(panelist_line("writer", "w1", "w2"))

    def vote(briefing: baton.Briefing) -> str:
        return f"I vote for {briefing.transcript[-1].text}."

    @baton.function("strict-referee")
    async def referee(briefing: baton.Briefing) -> dict[str, str]:
        return {"text": f"round {briefing.round} was short"}

    def enough(briefing: baton.Briefing, rounds: int) -> bool:
        return briefing.round >= rounds

    def tone(briefing: baton.Briefing) -> str:
        return f"Be kind in round {briefing.round}."

    def summary(shape: baton.PanelShape) -> str:
        return f"{len(shape.contributions)} said, {shape.referee_critiques[-1].critique}"

    panel = round_robin(
        "panel",
        [role_member("writer"), Member("voter", speaker=vote)],
        referee=referee,
        terminate_when={"function": enough, "parameters": {"rounds": 2}},
        instructions=tone,
        synthesizer=summary,
    )
    handle = await temporal.start(panel, input="Why?")
    assert [(said.name, said.text, said.part) async for said in handle] == [
        ("writer", "w1", "contribution"),
        ("voter", "I vote for w1.", "contribution"),
        ("referee", "round 1 was short", "critique"),
        ("writer", "w2", "contribution"),
        ("voter", "I vote for w2.", "contribution"),
        ("referee", "round 2 was short", "critique"),
        ("synthesizer", "4 said, round 2 was short", "deliverable"),
    ]
    assert (await handle.result()).message == "4 said, round 2 was short"
    queue = (await env.client.get_workflow_handle(handle.id).describe()).task_queue
    assert queue != env.task_queue, "another worker there would fail what it has no function for"
    while [thread for thread in threading.enumerate() if thread.name.startswith("worker ")]:
        await asyncio.sleep(0.01)  # it ends with its run
    assert [f"Be kind in round {n}." in each.system for n, each in enumerate(model_requests(env), 1)] == [True, True]


async def test_agents_and_teams_of_the_program_are_brought_along(env: Environment, temporal: Connection) -> None:
    env.script(line("sage", "Wise."), line("scout", "Seen."), line("herald", "Told."))
    scouts = Team("scouts", strategy="sequential", members=[Agent("scout", prompt="You are scout.")])
    herald = Agent("herald", prompt="You are herald.")
    panel = round_robin(
        "panel",
        [Member("elder", speaker=Agent("sage", prompt="You are sage.")), scouts],
        max_rounds=1,
        synthesizer=herald,
    )
    handle = await temporal.start(panel, input="Why?")
    assert [(said.team, said.name, said.text) async for said in handle] == [
        ("panel", "elder", "Wise."),
        ("scouts", "scout", "Seen."),
        ("panel", "scouts", "Seen."),
        ("panel", "synthesizer", "Told."),
    ]
    assert (await handle.result()).value == "Told."


async def test_a_selector_may_be_an_agent_of_the_program(env: Environment, temporal: Connection) -> None:
    env.script(
        ScriptLine.model_validate({"system": "You are the chief", "say": [call("select-next-speaker", name="b")]}),
        line("a", "A."),
        line("b", call("terminate", response="B it is.")),
    )
    chief = Agent("chief", prompt="You are the chief.")
    a, b = Agent("a", prompt="You are a."), Agent("b", prompt="You are b.", tools=["terminate"])
    desk = Team("desk", strategy="selector", members=[a, b], selector={"agent": chief}, max_turns=3)
    assert (await temporal.run(desk, input="Who?")).message == "B it is."


async def test_a_failed_run_raises_with_its_status_and_what_was_said(env: Environment, temporal: Connection) -> None:
    env.script(panelist_line("writer", "w1"), panelist_line("editor", {"status": 400}))
    panel = round_robin("panel", [role_member("writer"), role_member("editor")], max_rounds=1)
    with pytest.raises(baton.RunFailed, match=r"panel-\w+ failed: ") as caught:
        await temporal.run(panel, input="Why?")
    assert (caught.value.status.phase, caught.value.status.stop_reason) == ("Failed", "failed")
    assert [(each.agent_name, each.text) for each in caught.value.contributions] == [("writer", "w1")]


async def test_a_run_of_one_agent_and_of_several(env: Environment, temporal: Connection) -> None:
    env.script(line("a", "A."), line("b", '{"go": false, "reasons": []}'))
    one, other = Agent("a", prompt="You are a."), Agent("b", prompt="You are b.", output_schema=Report)
    assert (await temporal.run(one, input="Why?")).value == "A."
    assert (await temporal.run(other, input="Why?")).value == Report(go=False, reasons=[])
    both = await temporal.run(Query("both", "Why?", targets=[one, other]))
    assert [each.message for each in both.status.responses] == ["A.", '{"go": false, "reasons": []}']


@pytest.mark.full
async def test_messages_can_be_read_again_from_the_beginning(env: Environment, temporal: Connection) -> None:
    say_all(env)
    panel = round_robin("panel", [role_member("writer"), role_member("editor")], max_rounds=2, referee=True)
    handle = await temporal.start(panel, input="Why?", id=f"panel-{env.task_queue}")
    first = [said async for said in handle]
    assert [(said.round, said.name, said.text) for said in first] == [
        (1, "writer", "w1"),
        (1, "editor", "e1"),
        (1, "referee", "Be brief."),
        (2, "writer", "w2"),
        (2, "editor", "e2"),
        (2, "referee", "Be brief."),
        (2, "synthesizer", "The deliverable."),
    ]
    later = await temporal.attach(handle.id)
    assert [said async for said in later] == first
    assert (await later.result()).value == "The deliverable."
    assert (await later.status()).phase == "Completed"
    with pytest.raises(baton.NoSuchRunError):
        await temporal.attach("nobody")


async def test_a_hidden_synthesizers_message_is_not_in_the_stream(env: Environment, temporal: Connection) -> None:
    say_all(env)
    panel = round_robin("panel", [role_member("writer")], max_rounds=1, synthesizer_visibility={"client": False})
    handle = await temporal.start(panel, input="Why?")
    assert [said.text async for said in handle] == ["w1"]
    assert (await handle.result()).message == "The deliverable."


@pytest.mark.full
async def test_a_stream_of_messages_goes_on_after_a_lost_connection(
    env: Environment, server: EmbeddedServer, temporal: Connection
) -> None:
    env.script(panelist_line("writer", "w1", {"text": "w2", "delay": 1}, "w3"))
    hasty = RetryConfig(max_retries=1, max_elapsed_time_millis=100)  # by itself, the SDK tries again for seconds
    async with TcpProxy(server.port) as proxy:
        client = await Client.connect(proxy.address, data_converter=DATA_CONVERTER, retry_config=hasty)
        panel = round_robin("panel", [role_member("writer")], max_rounds=3, synthesizer=False)
        run = client.get_workflow_handle((await temporal.start(panel, input="Why?")).id)
        said = []
        async for each in stream_messages(client, run):
            said.append(each.text)
            if len(said) == 1:
                await proxy.cut(0.5)
        assert said == ["w1", "w2", "w3"]


@pytest.mark.full
async def test_the_messages_of_a_run_that_continued_as_new_are_one_stream(
    env_with_short_histories: Environment, server_with_short_histories: EmbeddedServer
) -> None:
    env_with_short_histories.script(panelist_line("writer", *[f"w{n}" for n in range(1, 17)]), SYNTHESIS)
    panel = round_robin("panel", [role_member("writer")], max_rounds=16, session={"rounds": 16})
    async with baton.connect(
        server_with_short_histories.address, task_queue=env_with_short_histories.task_queue
    ) as temporal:
        handle = await temporal.start(panel, input="Why?")
        said = [said.text async for said in handle]
        assert said == [*(f"w{n}" for n in range(1, 17)), "The deliverable."]
        team = env_with_short_histories.client.get_workflow_handle(f"{handle.id}/target-1/panel")
        assert (await team.describe()).run_id != await first_run_id(team)
        assert (await handle.result()).value == "The deliverable."


async def test_a_session_is_changed_while_a_panel_reads_it(env: Environment, temporal: Connection) -> None:
    env.script(panelist_line("writer", "w1", {"text": "w2", "held": True}, "w3"))
    panel = round_robin(
        "panel",
        [role_member("writer")],
        terminate_when="round >= session.rounds",
        session={"rounds": 4},
        synthesizer=False,
    )
    handle = await temporal.start(panel, input="Why?", session={"desk": "north"})
    await env.wait_for_calls(2)
    for size in (20_000, 3_000_000):  # more than Temporal stores, so that the run could not even reject it
        with pytest.raises(baton.Refused, match="16,000 bytes"):
            await handle.session(note="x" * size)
    assert await handle.session(rounds=2, desk=None) == {"rounds": 2}
    env.model.release()
    value = (await handle.result()).value
    assert isinstance(value, baton.PanelShape)
    assert value.rounds == 2


@pytest.mark.full
async def test_a_steering_message_is_read_by_the_model_and_streamed(env: Environment, temporal: Connection) -> None:
    env.script(panelist_line("writer", {"text": "w1", "held": True}, "w2"), SYNTHESIS)
    handle = await temporal.start(round_robin("panel", [role_member("writer")], max_rounds=2), input="Why?")
    await env.wait_for_calls(1)
    await handle.steer("Mind the costs.", name="ann")
    env.model.release()
    said = [(each.name, each.text) async for each in handle]
    assert said == [
        ("writer", "w1"),
        ("ann", "Mind the costs."),
        ("writer", "w2"),
        ("synthesizer", "The deliverable."),
    ]
    assert "Mind the costs." in model_requests(env)[1].user


@pytest.mark.full
async def test_an_empty_steering_message_is_refused(env: Environment, temporal: Connection) -> None:
    one = Agent("one", prompt="You are one.")
    pair = Team("pair", strategy="round-robin", members=[one], max_turns=2, on_max_turns="complete")
    env.script(line("one", {"text": "1", "held": True}, "2"))
    handle = await temporal.start(pair, input="Why?")
    await env.wait_for_calls(1)
    with pytest.raises(baton.Refused, match="a text of 1 to"):
        await handle.steer(" ")
    await handle.steer("Be brief.")
    env.model.release()
    assert [(each.name, each.text) async for each in handle] == [("one", "1"), ("user", "Be brief."), ("one", "2")]


@pytest.mark.full
async def test_a_run_is_terminated_with_its_state_as_result(env: Environment, temporal: Connection) -> None:
    env.script(panelist_line("writer", "w1", {"text": "w2", "held": True}))
    panel = round_robin("panel", [role_member("writer")])
    handle = await temporal.start(panel, input="Why?")
    await env.wait_for_calls(2)
    await handle.terminate("enough for today")
    env.model.release()
    result = await handle.result()
    assert (result.status.stop_reason, result.status.note) == ("terminated", "enough for today")
    assert isinstance(result.value, baton.PanelShape)
    assert [each.text for each in result.value.contributions] == ["w1", "w2"]


@pytest.mark.full
async def test_a_run_is_canceled(env: Environment, temporal: Connection) -> None:
    env.script(panelist_line("writer", "w1", {"text": "w2", "hang": True}))
    handle = await temporal.start(round_robin("panel", [role_member("writer")]), input="Why?")
    await env.wait_for_calls(2)
    assert (await handle.status()).phase == "Running"
    await handle.cancel("too dear")
    with pytest.raises(baton.RunFailed, match="was canceled: too dear") as caught:
        await handle.result()
    assert caught.value.status.phase == "Canceled"


@pytest.mark.parametrize("schema", [{"type": "object"}, Report], ids=["json", "pydantic"])
async def test_an_agent_that_was_terminated_before_it_has_answered_in_its_schema_gives_what_it_has_said(
    env: Environment, temporal: Connection, schema: Any
) -> None:
    env.script(line("one", {"text": "1", "hang": True}))
    handle = await temporal.start(Agent("one", prompt="You are one.", output_schema=schema), "How many?")
    await env.wait_for_calls(1)
    await handle.terminate("enough", now=True)
    result = await handle.result()
    assert (result.status.stop_reason, result.message) == ("terminated", "")
    if schema is Report:
        with pytest.raises(baton.NoValueError, match=r"early \(terminated\), without an answer of the type Report"):
            _ = result.value
    else:
        assert result.value == result.message


async def test_a_run_that_has_ended_refuses_messages(env: Environment, temporal: Connection) -> None:
    env.script(line("one", "1"))
    handle = await temporal.start(Agent("one", prompt="You are one."), "How many?")
    await handle.result()
    for message in (handle.steer("More."), handle.session(a=1), handle.terminate(), handle.cancel()):
        with pytest.raises(baton.Refused, match=f"the run {handle.id} has ended"):
            await message


async def test_a_run_that_temporal_has_closed_has_failed(env: Environment, temporal: Connection) -> None:
    env.script(panelist_line("writer", {"text": "w1", "hang": True}))
    handle = await temporal.start(round_robin("panel", [role_member("writer")]), input="Why?")
    await env.wait_for_calls(1)
    await env.client.get_workflow_handle(handle.id).terminate()
    with pytest.raises(baton.RunFailed, match="closed in Temporal: terminated"):
        await handle.result()


async def test_a_run_without_a_worker_is_logged_as_a_warning(
    env: Environment, server: EmbeddedServer, temporal: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    async with baton.connect(server.address, task_queue=f"{env.task_queue}-empty") as alone:
        handle = await alone.start(round_robin("panel", ["a"]), input="Why?")
    assert f"{handle.id} waits: no worker is running" in caplog.text
    await env.client.get_workflow_handle(handle.id).terminate()


async def test_a_shared_transcript_is_read_by_its_key(env: Environment, temporal: Connection) -> None:
    env.script(panelist_line("writer", "w1", {"text": "w2", "held": True}), SYNTHESIS)
    panel = round_robin(
        "panel", [role_member("writer")], max_rounds=2, contributions={"session": "desk", "key": "panel"}
    )
    handle = await temporal.start(panel, input="Why?")
    async for said in handle:
        assert said.text == "w1"
        break
    assert [each.text for each in await temporal.contributions("desk", "panel")] == ["w1"]
    env.model.release()
    await handle.result()
    assert await temporal.contributions("desk", "panel") == (
        baton.Contribution(round=1, agent_name="writer", text="w1"),
        baton.Contribution(round=2, agent_name="writer", text="w2"),
    )
    assert await temporal.contributions("desk") == ()


async def test_the_default_agents_of_a_panel_can_be_customized(env: Environment, temporal: Connection) -> None:
    say_all(env)
    writer = baton.roster_agent("writer", "the poet", team="panel", more="You rhyme.")
    panel = round_robin(
        "panel",
        [writer],
        max_rounds=1,
        referee=baton.referee(team="panel", more="You are strict."),
        synthesizer=baton.synthesizer(team="panel"),
    )
    assert (await temporal.run(panel, input="Why?")).value == "The deliverable."
    poet, judge, author = model_requests(env)
    assert poet.system.startswith("You are writer, the poet. You take part in a panel, panel,")
    assert poet.system.endswith("You rhyme.")
    assert "\n\nYou are strict." in judge.system
    assert baton.PanelShape.model_validate_json(author.user).referee_critiques[0].critique == "Be brief."


@pytest.mark.full
async def test_a_run_with_functions_waits_for_a_program_that_attaches_to_it(
    env: Environment, server: EmbeddedServer, temporal: Connection
) -> None:
    begun = asyncio.Event()

    def reporter(briefing: baton.Briefing) -> str:
        return f"report {briefing.round}"

    async def checker(briefing: baton.Briefing) -> str:
        begun.set()
        await asyncio.sleep(30)
        return "never"

    panel = round_robin("panel", [reporter, checker], max_rounds=1, synthesizer=False)
    async with baton.connect(server.address, task_queue=env.task_queue) as first:
        handle = await first.start(panel, input="Why?")
        async for said in handle:
            assert said.text == "report 1"
            break

    @baton.function("checker")
    def quick(briefing: baton.Briefing) -> str:
        return "checked"

    later = await temporal.attach(handle.id, functions=[reporter, quick])
    value = (await later.result()).value
    assert isinstance(value, baton.PanelShape)
    assert [each.text for each in value.contributions] == ["report 1", "checked"]


async def test_a_failed_run_with_functions_goes_on_in_the_program_that_retries_it(
    env: Environment, temporal: Connection
) -> None:
    calls = list[str]()
    broken = [True]

    def reporter(briefing: baton.Briefing) -> str:
        calls.append("reporter")
        return f"report {briefing.round}"

    def checker(briefing: baton.Briefing) -> str:
        calls.append("checker")
        if broken:
            raise ValueError("not today")
        return "checked"

    handle = await temporal.start(round_robin("panel", [reporter, checker], max_rounds=1, synthesizer=False), "Why?")
    with pytest.raises(baton.RunFailed, match="not today"):
        await handle.result()
    broken.clear()
    again = await temporal.retry(handle.id, functions=[reporter, checker])
    value = (await again.result()).value
    assert isinstance(value, baton.PanelShape)
    assert [each.text for each in value.contributions] == ["report 1", "checked"]
    assert (again.id, calls) == (handle.id, ["reporter", "checker", "checker"])
    with pytest.raises(baton.NotRetriedError, match="has not failed: it is completed"):
        await temporal.retry(handle.id)


async def test_the_value_of_a_fork_has_the_type_of_the_value_of_its_run(env: Environment, temporal: Connection) -> None:
    env.script(panelist_line("writer", "w1", "w2"))
    panel = round_robin("panel", [role_member("writer")], max_rounds=2, synthesizer=False)
    handle = await temporal.start(panel, input="Why?")
    value = (await handle.result()).value
    assert isinstance(value, baton.PanelShape)
    forked = await handle.fork("round-1/writer")
    assert (await forked.result()).value == value


async def test_a_secret_of_the_environment_is_sent_but_in_no_history(
    env: Environment, temporal: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    env.script(line("a", "A."))
    keys: list[str] = []
    env.model.on_headers = lambda headers: keys.append(headers["authorization"])
    monkeypatch.setenv("MY_KEY", f"{KEY}-of-environment")
    model = Model("mine", model="gpt-4o", base_url=env.model_url, api_key=baton.Secret.env("MY_KEY"))
    one = Agent("a", prompt="You are a.", model=model, parameters={"unused": baton.Secret.env("MY_KEY")})
    handle = await temporal.start(one, input="Why?")
    assert (await handle.result()).value == "A."
    assert keys == [f"Bearer {KEY}-of-environment"]
    async for event in env.client.get_workflow_handle(handle.id).fetch_history_events():
        assert KEY.encode() not in event.SerializeToString()
    assert KEY not in f"{model!r} {model.manifest}"
    with pytest.raises(ValueError, match="the environment of this process has no variable 'MY_OTHER_KEY'"):
        baton.Secret.env("MY_OTHER_KEY")


async def test_a_literal_api_key_stays_in_the_process(env: Environment, temporal: Connection) -> None:
    env.script(line("a", "A."))
    model = Model("mine", model="gpt-4o", base_url=env.model_url, api_key=f"{KEY}-mine")
    handle = await temporal.start(Agent("a", prompt="You are a.", model=model), input="Why?")
    assert (await handle.result()).value == "A."
    async for event in env.client.get_workflow_handle(handle.id).fetch_history_events():
        assert KEY.encode() not in event.SerializeToString()
