"""Agents of A2AServers: each is called by its own protocol, once, and its answer joins the conversation."""

import asyncio
import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from a2a.types import Artifact, GetTaskRequest, Part, StreamResponse, TaskArtifactUpdateEvent
from a2a.utils.errors import TaskNotFoundError
from temporalio.client import Client

from baton.activities.agent.a2a import A2AExecutor, Progress, text_of
from baton.activities.context.value_resolver import ValueResolver
from baton.activities.runtime.secrets import SecretStore
from baton.contracts.errors import AgentFailed
from baton.journal.leases import without_lease
from baton.resources.a2a_server import A2AServer
from baton.resources.loader import load_files
from baton.resources.secret import Secret, Secrets
from baton.temporal.activity import INTERVAL
from tests.harness.agent_server import AgentServer, Turn
from tests.harness.environment import Environment, Handle, agent, line, team
from tests.harness.manifests import own_catalog
from tests.harness.remote_agents import a2a_agent, a2a_server


@pytest.fixture
def agents() -> Iterator[AgentServer]:
    """A server of an agent."""
    yield AgentServer()


async def asked(env: Environment, agents: AgentServer, **spec: Any) -> Any:
    """The result of an agent that is asked by itself."""
    given = {"agent": "oracle", "input": "Why?", "resources": [a2a_agent("oracle"), a2a_server(agents, **spec)]}
    return await env.turn_result(await env.start("agent", given))


async def streamed(turn: Turn) -> None:
    """A task whose artifact is written in two chunks."""
    task = await turn.task()
    await task.start_work()
    await task.add_artifact([Part(text="Because ")], artifact_id="a")
    await task.add_artifact([Part(text="it is.")], artifact_id="a", append=True, last_chunk=True)
    await task.complete()


PROTOCOLS = [("1.0", "JSONRPC"), ("1.0", "HTTP+JSON"), ("0.3.0", "JSONRPC"), ("0.3.0", "HTTP+JSON")]


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(("version", "binding"), PROTOCOLS)
async def test_an_agent_is_called_in_each_version_and_binding_of_the_protocol(
    env: Environment, agents: AgentServer, version: str, binding: str, streaming: bool
) -> None:
    agents.version, agents.binding, agents.streaming, agents.behaviour = version, binding, streaming, streamed
    with agents.serving():
        turn = await asked(env, agents)
    assert (turn.stop_reason, turn.message) == ("completed", "Because it is."), turn
    assert agents.turns[0].texts == ["Why?"]
    (message,) = turn.messages
    assert (message.name, message.model) == ("oracle", "Oracle")
    assert message.remote.state == "completed"
    assert message.remote.task
    assert message.remote.context
    assert len(agents.turns) == 1


async def test_an_agent_is_found_by_its_card_at_either_well_known_place(env: Environment, agents: AgentServer) -> None:
    agents.card_path = "/.well-known/agent.json"
    with agents.serving():
        assert (await asked(env, agents)).message == "Yes."
    paths = dict.fromkeys(seen.path for seen in agents.seen)  # a slow machine may read the card twice
    assert [*paths] == ["/.well-known/agent-card.json", "/.well-known/agent.json", "/"]


@pytest.mark.parametrize("card", ["missing", "invalid", "of another protocol"])
async def test_errors_name_the_server_and_its_port_and_no_more_of_its_address(
    env: Environment, agents: AgentServer, card: str
) -> None:
    if card != "missing":
        agents.card_path = "/zqzq-path/.well-known/agent-card.json"
    with agents.serving():
        if card == "invalid":
            agents.streaming = "no boolean"  # type: ignore[assignment]  # it is in the card
        elif card == "of another protocol":
            agents.version = "9.0"
        turn = await asked(env, agents, address={"value": f"{agents.url}/zqzq-path"})
    assert turn.failure
    assert urlsplit(agents.url).netloc in turn.failure.message
    reasons = {"missing": "no agent card", "invalid": "no valid agent card", "of another protocol": "interface, only"}
    assert reasons[card] in turn.failure.message
    assert "zqzq" not in turn.failure.message


async def test_an_agent_whose_annotations_say_the_address_needs_no_other_manifest(
    env: Environment, agents: AgentServer
) -> None:
    alone = a2a_agent("oracle")
    del alone["spec"]["executionEngine"]
    with agents.serving():
        alone["metadata"]["annotations"] = {"ark.mckinsey.com/a2a-server-address": agents.url}
        given = {"agent": "oracle", "input": "Why?", "resources": [alone]}
        turn = await env.turn_result(await env.start("agent", given))
    assert turn.message == "Yes."


async def test_the_conversation_so_far_is_sent_and_what_the_agent_says_is_read_by_the_next(
    env: Environment, agents: AgentServer
) -> None:
    env.script(line("one", "First."), line("three", "Third."))
    members = team("team", "one", "oracle", "three", strategy="sequential")
    with agents.serving():
        manifests = [agent("one"), a2a_agent("oracle"), agent("three"), a2a_server(agents), members]
        turn = await env.turn_result(await env.start_team(manifests))
    assert [(each.name, each.content) for each in turn.messages] == [
        ("one", "First."),
        ("oracle", "Yes."),
        ("three", "Third."),
    ]
    assert agents.turns[0].texts == ["The conversation so far:\n\none: First.", "Why?"]
    read = [message["content"] for message in env.model.requests[-1].body["messages"]]
    assert "Yes." in read[-1] or "Yes." in read[-2]


async def test_an_empty_question_is_sent_to_an_agent_as_any_other(env: Environment, agents: AgentServer) -> None:
    with agents.serving():
        given = {"agent": "oracle", "input": "", "resources": [a2a_agent("oracle"), a2a_server(agents)]}
        turn = await env.turn_result(await env.start("agent", given, execution_timeout=timedelta(seconds=30)))
    assert (turn.message, agents.turns[0].texts) == ("Yes.", [""])


def update(key: str, *parts: Part, append: bool = False) -> StreamResponse:
    artifact = Artifact(artifact_id=key, parts=parts)
    return StreamResponse(artifact_update=TaskArtifactUpdateEvent(artifact=artifact, append=append))


MUCH = [
    [update(f"{number}{'x' * 100_000}") for number in range(100)],
    [update("a", *[Part() for _ in range(1_000)], append=True) for _ in range(100)],
    [update(f"{number}") for number in range(100_000)],
    [update("a", Part(text="x" * 100_000), append=True) for _ in range(100)],
]


@pytest.mark.parametrize("events", MUCH, ids=["ids", "empty parts", "artifacts", "text"])
def test_an_agent_that_gives_too_much_is_refused_whatever_it_gives(events: list[StreamResponse]) -> None:
    progress = Progress(lambda _: None)
    with pytest.raises(AgentFailed, match="the agent sent more than 8,000,000 bytes"):
        for event in events:
            progress.add_event(event)


@pytest.mark.full
def test_an_artifact_that_is_given_anew_counts_once_and_many_small_pieces_of_a_text_as_their_text() -> None:
    progress = Progress(lambda _: None)
    for _ in range(20):
        progress.add_event(update("a", Part(text="x" * 1_000_000)))
    for _ in range(100_000):
        progress.add_event(update("b", Part(text=""), append=True))
    progress.add_event(update("b", Part(text="yes"), append=True))
    assert progress.text.endswith("x\n\nyes")


async def test_an_agent_keeps_its_context_and_answers_what_it_was_asked_in_its_open_task(
    env: Environment, agents: AgentServer
) -> None:
    async def booked(turn: Turn) -> None:
        task = await turn.task()
        if turn.is_new:
            await task.requires_input(task.new_agent_message([Part(text="Which day?")]))
        else:
            await task.complete(task.new_agent_message([Part(text=f"Booked: {turn.texts[-1]}")]))

    agents.behaviour = booked
    env.script(line("one", "A trip!", "On Monday."))
    members = team("team", "one", "oracle", maxTurns=2, onMaxTurns="complete")
    with agents.serving():
        turn = await env.turn_result(
            await env.start_team([agent("one"), a2a_agent("oracle"), a2a_server(agents), members])
        )
    assert [each.content for each in turn.messages] == ["A trip!", "Which day?", "On Monday.", "Booked: On Monday."]
    first, second = agents.turns
    assert second.message.task_id == first.context.task_id
    assert second.message.context_id == first.context.context_id
    assert [each.remote.state for each in turn.messages if each.remote] == ["input-required", "completed"]


async def test_a_question_has_to_fit_no_schema_but_the_final_answer_has(env: Environment, agents: AgentServer) -> None:
    async def booked(turn: Turn) -> None:
        task = await turn.task()
        texts = ("", "Monday!", '{"day": "Monday"}')
        if len(agents.turns) == 1:
            await task.requires_input(task.new_agent_message([Part(text="Which day?")]))
        else:
            await task.complete(task.new_agent_message([Part(text=texts[len(agents.turns) - 1])]))

    agents.behaviour = booked
    oracle = a2a_agent("oracle")
    oracle["spec"]["outputSchema"] = {"type": "object", "required": ["day"]}
    members = team("team", "oracle", maxTurns=2, onMaxTurns="complete")
    with agents.serving():
        turn = await env.turn_result(await env.start_team([oracle, a2a_server(agents), members]))
    said = [each.content for each in turn.messages if each.role == "assistant"]
    assert said == ["Which day?", "Monday!", '{"day": "Monday"}']
    assert agents.turns[2].texts[-1].startswith("Your answer is not JSON")


@pytest.mark.parametrize(
    ("ending", "family", "kind", "says"),
    [
        ("failed", "ModelError", "AgentFailed", "agent oracle has failed: No luck."),
        ("reject", "ModelError", "AgentRejected", "agent oracle has rejected its task: No luck."),
        ("cancel", "ModelError", "AgentFailed", "the task of agent oracle was canceled on its server: No luck."),
        (
            "requires_auth",
            "AuthenticationError",
            "AuthorizationRequired",
            "agent oracle requires authorization: No luck.",
        ),
    ],
)
async def test_the_states_of_a_task_that_gives_no_answer_are_told_apart(
    env: Environment, agents: AgentServer, ending: str, family: str, kind: str, says: str
) -> None:
    async def unlucky(turn: Turn) -> None:
        task = await turn.task()
        await getattr(task, ending)(task.new_agent_message([Part(text="No luck.")]))

    agents.behaviour = unlucky
    with agents.serving():
        turn = await asked(env, agents)
    assert turn.failure
    assert (turn.failure.family, turn.failure.type, turn.failure.message) == (family, kind, says)
    assert len(agents.turns) == 1


@pytest.mark.parametrize("number", ["inf", "nan"])
def test_data_that_is_not_json_is_an_error_of_the_agent(number: str) -> None:
    part = Part(media_type="application/json")
    part.data.struct_value.update({"price": float(number)})
    with pytest.raises(AgentFailed, match="not JSON"):
        text_of([part])


async def test_files_and_data_are_kept_as_texts_that_say_what_they_are(env: Environment, agents: AgentServer) -> None:
    async def made(turn: Turn) -> None:
        task = await turn.task()
        value = Part(media_type="application/json")
        value.data.struct_value.update({"price": 12})
        picture = Part(raw=b"1234", filename="a.png", media_type="image/png")
        await task.add_artifact([Part(text="See:"), value, picture, Part(url="http://x/y.pdf", filename="y.pdf")])
        await task.complete()

    agents.behaviour = made
    with agents.serving():
        turn = await asked(env, agents)
    assert turn.message == (
        'See:\n\n[data]\n{"price": 12}\n\n[file a.png, image/png, 4 bytes]\n\n[file y.pdf, at http://x/y.pdf]'
    )


async def test_headers_from_secrets_are_sent_to_the_manifests_server_alone_and_never_leak(
    env: Environment, agents: AgentServer
) -> None:
    async def leak(turn: Turn) -> None:
        turn.context._context_id = f"context of {agents.seen[-1].headers['authorization']}"
        await turn.reply(f"My key is {agents.seen[-1].headers['authorization']}")

    agents.behaviour = leak
    key = "far-away-secret-0123456789"
    loaded = env.catalog.secrets
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"far": key}}
    loaded.add(Secret.model_validate(secret))
    with agents.serving():
        value = {"valueFrom": {"secretKeyRef": {"name": "keys", "key": "far"}}}
        handle = await env.start(
            "agent",
            {
                "agent": "oracle",
                "input": "Why?",
                "resources": [
                    a2a_agent("oracle"),
                    a2a_server(agents, headers=[{"name": "Authorization", "value": value}]),
                ],
            },
        )
        turn = await env.turn_result(handle)
    assert {seen.headers.get("authorization") for seen in agents.seen} == {key}
    assert turn.message == "My key is [secret]"
    assert key not in str(await handle.fetch_history()) + json.dumps(env.rows())


async def test_a_token_that_expires_while_a_task_goes_on_is_read_anew_from_the_workers_own_file(
    client: Client, tmp_path: Path, agents: AgentServer
) -> None:
    own, secret = tmp_path / "own.yaml", {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}}

    async def slow(turn: Turn) -> None:
        task = await turn.task()
        await task.start_work()
        own.write_text(yaml.safe_dump({**secret, "stringData": {"far": "the-second-token"}}))
        agents.key = "the-second-token"
        while not any(seen.headers.get("authorization") == agents.key for seen in agents.seen):
            await asyncio.sleep(0.02)
        await task.complete(task.new_agent_message([Part(text="Because.")]))

    agents.behaviour, agents.streaming, agents.key = slow, False, "the-first-token"
    own.write_text(yaml.safe_dump({**secret, "stringData": {"far": "the-first-token"}}))
    value = {"valueFrom": {"secretKeyRef": {"name": "keys", "key": "far"}}}
    with agents.serving():
        async with Environment.running(client, tmp_path, load_files([own])) as env:
            turn = await asked(env, agents, headers=[{"name": "Authorization", "value": value}])
    assert turn.message == "Because.", turn
    assert len(agents.turns) == 1


async def test_an_address_in_a_card_may_not_lead_into_the_workers_own_network(
    env: Environment, agents: AgentServer
) -> None:
    other = AgentServer()
    with agents.serving(), other.serving():
        agents.interface_url = other.url
        turn = await asked(env, agents)
    assert turn.failure
    assert turn.failure.type == "AgentFailed"
    assert "is in the worker's own network" in turn.failure.message
    assert other.seen == []


async def test_another_server_that_a_card_names_gets_none_of_the_headers(agents: AgentServer) -> None:
    other = AgentServer()
    with agents.serving(), other.serving():
        agents.interface_url = other.url
        headers = [{"name": "X-Tenant", "value": {"value": "us"}}]
        server = A2AServer.model_validate(a2a_server(agents, headers=headers, address={"value": agents.url}))
        secrets = SecretStore(Secrets(), {"BATON_ALLOW_PRIVATE_HOSTS": "1"})
        values = ValueResolver(own_catalog(server), secrets)
        executor = A2AExecutor()
        async with executor._client(server, values, 5) as (client, _):
            with pytest.raises(TaskNotFoundError), without_lease():
                await client.get_task(GetTaskRequest(id="unknown"))
        await executor.close()
    assert [seen.headers.get("x-tenant") for seen in (*agents.seen, *other.seen)] == ["us", None]


@pytest.mark.full
@pytest.mark.parametrize("version", ["1.0", "0.3.0"])
@pytest.mark.parametrize("named", [True, False], ids=["a task", "a task that is named after the cancel"])
async def test_a_cancel_is_passed_on_to_the_task(
    env: Environment, agents: AgentServer, version: str, named: bool
) -> None:
    names_task = threading.Event()

    async def slow(turn: Turn) -> None:
        while not (named or names_task.is_set()):
            await asyncio.sleep(0.02)
        task = await turn.task()
        await task.add_artifact([Part(text="Working on it.")])
        await asyncio.sleep(60)

    agents.behaviour, agents.version = slow, version
    with agents.serving():
        handle = await env.start(
            "agent", {"agent": "oracle", "input": "?", "resources": [a2a_agent("oracle"), a2a_server(agents)]}
        )
        while not (await live_text(env, handle) if named else agents.turns):  # it knows the task, or has sent it
            await asyncio.sleep(0.05)
        await handle.signal("cancel")
        await asyncio.sleep(0 if named else INTERVAL)  # the answer to the next heartbeat tells the worker
        names_task.set()
        turn = await env.turn_result(handle)
        assert turn.stop_reason == "canceled"
        async with asyncio.timeout(60):
            while not agents.canceled:
                await asyncio.sleep(0.05)
    assert agents.canceled == [agents.turns[0].context.task_id]


@pytest.mark.full
async def test_a_task_that_takes_too_long_is_canceled_and_not_begun_again(
    env: Environment, agents: AgentServer
) -> None:
    async def slow(turn: Turn) -> None:
        await (await turn.task()).start_work()
        await asyncio.sleep(60)

    agents.behaviour = slow
    with agents.serving():
        turn = await asked(env, agents, timeout="2s")
    assert turn.failure
    assert (turn.failure.type, turn.failure.message) == ("CallTimeout", "agent oracle did not finish within 2 s")
    assert (len(agents.turns), len(agents.canceled)) == (1, 1)


async def live_text(env: Environment, handle: Handle) -> str:
    """What the last heartbeat of a run's call says."""
    for pending in (await handle.describe()).raw_description.pending_activities:
        if pending.heartbeat_details.payloads:
            (live,) = await env.client.data_converter.decode(pending.heartbeat_details.payloads)
            return str(live["text"])
    return ""


async def test_the_text_of_a_running_task_is_shown_as_it_is_written(env: Environment, agents: AgentServer) -> None:
    shown = threading.Event()

    async def slow(turn: Turn) -> None:
        task = await turn.task()
        await task.add_artifact([Part(text="Because ")], artifact_id="a")
        while not shown.is_set():
            await asyncio.sleep(0.02)
        await task.add_artifact([Part(text="it is.")], artifact_id="a", append=True)
        await task.complete()

    agents.behaviour = slow
    with agents.serving():
        manifests = [a2a_agent("oracle"), a2a_server(agents)]
        handle = await env.start("agent", {"agent": "oracle", "input": "?", "resources": manifests})
        async with asyncio.timeout(60):
            while not await live_text(env, handle):
                await asyncio.sleep(0.1)
        assert await live_text(env, handle) == "Because "
        shown.set()
        turn = await env.turn_result(handle)
    assert turn.message == "Because it is."
