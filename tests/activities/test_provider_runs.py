"""What every provider of models does alike in runs: teams, tools, schemas, fallbacks, retries and a worker's death."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from temporalio.client import Client

from baton.resources.loader import load_files
from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.client import WORKFLOW_TASK_TIMEOUT
from baton.testing import Reply, ScriptedModel, ScriptedToolCall
from tests.harness.environment import Environment, Json, agent, manifest, team
from tests.harness.killable import KillableWorker, wait_until
from tests.harness.model_providers import ProviderServer, serving
from tests.harness.processes import WorkerProcess, process_env
from tests.harness.stand_in import StandInReply

HELD = "held-0123456789-secret"
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "safe"}, "stringData": {"key": HELD}}
OF_SECRET = {"valueFrom": {"secretKeyRef": {"name": "safe", "key": "key"}}}
SCORE = {"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"]}


OTHERS_TURN = {
    "openai": "'content': '5 and 20.', 'name': 'one'",
    "anthropic": "# one:\\n5 and 20.",
    "bedrock": "# one:\\n5 and 20.",
}
"""How a request shows what another member has said."""


@pytest.fixture(params=OTHERS_TURN)
def provider(request: pytest.FixtureRequest) -> Iterator[ProviderServer]:
    with serving(request.param, OF_SECRET) as provider:
        yield provider


@pytest_asyncio.fixture(loop_scope="session")
async def env(client: Client, tmp_path: Path) -> AsyncIterator[Environment]:
    """A worker that was given a Secret."""
    (tmp_path / "secret.yaml").write_text(yaml.safe_dump(SECRET))
    async with Environment.running(client, tmp_path, load_files([tmp_path / "secret.yaml"])) as env:
        yield env
        async for run in env.closed_runs():
            assert HELD not in str(await run.fetch_history())
        assert HELD not in str(env.rows())


def asks(name: str, *tools: str, **spec: Any) -> Json:
    """An agent that asks the Model ``m``."""
    return agent(name, *tools, modelRef={"name": "m"}, **spec)


async def test_a_team_uses_tools_and_each_member_reads_the_others_under_their_names(
    env: Environment, provider: ProviderServer
) -> None:
    sums = [ScriptedToolCall(name="calculator", arguments={"expression": each}) for each in ("2+3", "4*5")]
    provider.server.answers(Reply(text="Let me see.", calls=sums), Reply(text="5 and 20."), Reply(text="I agree."))
    members = [asks("one", "calculator"), asks("two")]
    result = await env.turn_result(
        await env.start_team(
            [*members, team("team", "one", "two", maxTurns=1, onMaxTurns="complete"), provider.model()]
        )
    )
    assert result.message == "I agree.", result.failure
    assert (result.usage.model_calls, result.usage.tool_calls) == (3, 2)
    assert result.usage.total_tokens == 3 * 17
    results, others = (str(each["messages"]) for each in provider.server.requests[1:])
    assert "'5'" in results
    assert "'20'" in results
    assert OTHERS_TURN[provider.provider] in others
    assert "calculator" in others
    assert "Why?" in others


async def test_a_selectors_model_is_made_to_choose(env: Environment, provider: ProviderServer) -> None:
    def answer(body: Json) -> Reply:
        if "select-next-speaker" not in str(body):
            return Reply(text="Spoken.")
        return Reply(calls=[ScriptedToolCall(name="select-next-speaker", arguments={"name": "two"})])

    provider.server.answer = answer
    selector = team("team", "one", "two", strategy="selector", maxTurns=1, selector={"agent": "chooser"})
    brought = [selector, asks("one"), asks("two"), asks("chooser"), provider.model()]
    result = await env.turn_result(await env.start_team(brought))
    assert [each.name for each in result.messages if each.role == "assistant"] == ["two"]
    assert "select-next-speaker" in str(provider.server.requests[0])


async def test_a_schema_that_the_server_refuses_is_asked_for_in_words(
    env: Environment, provider: ProviderServer
) -> None:
    provider.server.answers(Reply(status=400, text="no schemas here"), Reply(text='{"score": 5}'))
    given = {"agent": "one", "input": "?", "resources": [asks("one", outputSchema=SCORE), provider.model()]}
    result = await env.turn_result(await env.start("agent", given))
    assert result.message == '{"score": 5}'
    assert len(provider.server.requests) == 2
    assert "JSON Schema" in str(provider.server.requests[1])


@pytest.mark.full
async def test_a_failed_call_waits_as_the_server_asks_and_a_cut_answer_is_not_kept(
    env: Environment, provider: ProviderServer
) -> None:
    overload = Reply(status=429, text=f"slow down, {HELD}", headers={"retry-after": "1"})
    provider.server.answers(overload, Reply(status=503), Reply(text="half " * 99, cut=90), Reply(text="At last."))
    given = {"agent": "one", "input": "?", "resources": [asks("one"), provider.model()]}
    begun = asyncio.get_running_loop().time()
    result = await env.turn_result(await env.start("agent", given))
    assert (result.message, len(provider.server.requests)) == ("At last.", 4)
    assert asyncio.get_running_loop().time() - begun > 2
    assert len(env.rows()) == 2


async def test_a_refused_key_ends_the_call_at_once_and_the_fallback_is_asked(
    env: Environment, provider: ProviderServer
) -> None:
    provider.server.answers(Reply(status=401, text=f"bad key {HELD}"))
    brought = [asks("one"), provider.model(fallback={"name": "other"})]
    other = {"type": "openai", "model": "gpt", "config": {"openai": {"baseUrl": env.model_url}}}
    result = await env.turn_result(
        await env.start(
            "agent", {"agent": "one", "input": "?", "resources": [*brought, manifest("Model", "other", other)]}
        )
    )
    assert (result.message, len(provider.server.requests)) == ("…", 1)
    alone = {"agent": "one", "input": "?", "resources": [asks("one"), provider.model()]}
    failed = await env.turn_result(await env.start("agent", alone))
    assert failed.failure
    assert failed.failure.type == "KeyRefused"


@pytest.mark.full
async def test_the_text_is_seen_while_it_is_written(env: Environment, provider: ProviderServer) -> None:
    reply = StandInReply(text="word " * 400, pause=0.15)
    provider.server.answers(reply)
    handle = await env.start("agent", {"agent": "one", "input": "?", "resources": [asks("one"), provider.model()]})
    seen = [""]
    while len(seen[-1]) < 400:
        await asyncio.sleep(0.1)
        for pending in (await handle.describe()).raw_description.pending_activities:
            decoded = await env.client.data_converter.decode(pending.heartbeat_details.payloads)
            seen.extend(each.get("text", "") for each in decoded)
    reply.pause = 0
    assert (await env.turn_result(handle)).message == reply.text
    assert all(reply.text.startswith(text) for text in seen)


async def test_a_model_without_a_stream_is_used_with_tools_and_as_a_fallback(
    env: Environment, provider: ProviderServer
) -> None:
    sums = [ScriptedToolCall(name="calculator", arguments={"expression": each}) for each in ("2+3", "4*5")]
    whole = provider.model("whole", stream=False)
    provider.server.answers(Reply(status=401), Reply(text="Let me see.", calls=sums), Reply(text="5 and 20."))
    brought = [asks("one", "calculator"), provider.model(fallback={"name": "whole"}), whole]
    result = await env.turn_result(await env.start("agent", {"agent": "one", "input": "?", "resources": brought}))
    assert result.message == "5 and 20.", result.failure
    assert (result.usage.model_calls, result.usage.tool_calls, result.usage.total_tokens) == (2, 2, 2 * 17)
    assert "'20'" in str(provider.server.requests[-1]["messages"])


async def test_cached_tokens_are_counted(env: Environment, provider: ProviderServer) -> None:
    provider.server.answers(StandInReply(text="Because.", cached=90))
    status = await env.status(await env.start_query([asks("one"), provider.model()], "agent/one"))
    assert (status.token_usage.cached_tokens, status.token_usage.prompt_tokens) == (90, 100)


@pytest.mark.slow
async def test_an_answered_call_is_not_repeated_after_the_death_of_a_worker(
    client: Client, server: EmbeddedServer, tmp_path: Path, provider: ProviderServer
) -> None:
    provider.server.answers(*(Reply(text=f"answer {each}", delay=0.05) for each in range(1, 7)))
    (tmp_path / "secret.yaml").write_text(yaml.safe_dump(SECRET))
    worker = WorkerProcess(
        process_env(
            TEMPORAL_ADDRESS=server.address,
            BATON_HOME=str(tmp_path),
            BATON_INLINE_MANIFESTS="all",
            BATON_TASK_QUEUE=uuid.uuid4().hex,
        ),
        tmp_path / "worker.log",
        tmp_path / "secret.yaml",
    )
    killable = KillableWorker(client, ScriptedModel(lambda _: Reply()), worker, tmp_path / "journal.db")
    both = team("team", "one", "two", maxTurns=2, onMaxTurns="complete")
    brought = [asks("one"), asks("two"), both, provider.model()]
    options: dict[str, Any] = {"task_queue": worker.task_queue, "task_timeout": WORKFLOW_TASK_TIMEOUT}
    worker.start()
    given = {"team": "team", "input": "Why?", "resources": brought}
    handle = await client.start_workflow("round-robin", given, id=f"crash-{uuid.uuid4().hex[:8]}", **options)
    await wait_until(lambda: killable.journal_rows() >= 3)
    worker.kill()
    worker.start()
    result = await handle.result()
    await worker.stop()
    assert 4 <= len(provider.server.requests) <= 5, "at most the call that was in flight is repeated"
    assert result["turns"] == 4
    assert killable.journal_rows() == 5
