"""Workers that are killed while they report spans: no span is missing, and each has one id."""

import json
from pathlib import Path

import pytest
from temporalio.client import Client

from baton.contracts.status import Status
from baton.starter.server.embedded import EmbeddedServer
from baton.testing import Reply
from tests.harness.environment import Json, agent, team
from tests.harness.killable import KillableEnvironment, KillableWorker, reply_count, wait_until
from tests.harness.trace_collector import TraceCollector

MEMBERS = ("one", "two", "three")
MANIFESTS = [*map(agent, MEMBERS), team("team", *MEMBERS, maxTurns=3, onMaxTurns="complete")]
ROWS = 1 + 3 * len(MEMBERS)
"""Rows of the journal at the end: the question and the answers."""

TEAM: Json = {"spec": {"input": "Why?", "target": {"type": "team", "name": "team"}}, "resources": MANIFESTS}


@pytest.mark.slow
async def test_a_killed_worker_leaves_no_span_out_and_makes_none_twice(
    client: Client, server: EmbeddedServer, tmp_path: Path
) -> None:
    """It is killed while the model answers for the second time, and again when the last answer is written down."""
    collector = TraceCollector()
    with collector.serve():
        ready = KillableWorker.ready(
            client, server.address, tmp_path, lambda _: Reply(text="…", delay=0.05), **collector.environment
        )
        async with ready as killable:
            handle = await killable.start("query", **TEAM)
            await wait_until(lambda: len(killable.model.requests) >= 2)
            killable.restart()
            await wait_until(lambda: killable.journal_rows() == ROWS)
            killable.restart()
            await _ended(handle)
            await wait_until(lambda: bool(collector.named("invoke_workflow") and not _orphans(collector)))
    assert (len(collector.named("chat")), len(collector.named("invoke_agent"))) == (9, 9)
    assert len(collector.named("invoke_workflow")) == 2
    assert len({each.trace for each in collector.spans}) == 1
    assert max(collector.repeated().values(), default=1) <= 3


@pytest.mark.slow
async def test_an_answer_that_was_written_down_is_reported_by_the_next_attempt(tmp_path: Path) -> None:
    """The worker is killed while the server does not hear it: the fifth answer is in the journal, and no more."""
    collector = TraceCollector()
    with collector.serve():
        async with KillableEnvironment.running(tmp_path, **collector.environment) as killable:
            killable.model._answer = lambda request: Reply(text="…", held=reply_count(request) == 4)
            handle = await killable.start("query", TEAM)
            await wait_until(lambda: len(killable.model.requests) == 5)
            async with killable.silent_server():
                killable.model.release()
                await wait_until(lambda: killable.journal_rows() == 1 + 5)
                killable.worker.kill()
            killable.worker.start()
            await _ended(handle)
            await wait_until(lambda: bool(collector.named("invoke_workflow") and not _orphans(collector)))
            assert len(killable.model.requests) == 9
    again = [each for each in collector.named("chat") if "baton.attempts" in each.attributes]
    assert len(collector.named("chat")) == 9
    assert [each.attributes["baton.attempts"] for each in again] == [2]
    assert again[0].attributes["gen_ai.usage.output_tokens"] > 0


async def test_what_a_killed_worker_has_not_exported_is_exported_by_the_next_one(
    client: Client, server: EmbeddedServer, tmp_path: Path
) -> None:
    """Also that of a run that has ended before, and whose workers will hear of it no more."""
    collector = TraceCollector(is_deaf=True)
    with collector.serve():
        ready = KillableWorker.ready(
            client, server.address, tmp_path, lambda _: Reply(text="Because."), **collector.environment
        )
        async with ready as killable:
            spec = {"input": "Why?", "target": {"type": "agent", "name": "a"}}
            handle = await killable.start("query", spec=spec, resources=[agent("a")])
            assert (await _ended(handle)).message == "Because."
            killable.worker.kill()
            collector.is_deaf = False
            assert collector.spans == []
            killable.worker.start()
            await wait_until(lambda: len(collector.spans) == 3)
            await killable.worker.stop()
    chat = "chat gpt-4.1-mini"
    assert collector.tree() == {"invoke_workflow query": {"invoke_agent a": {chat: {}}}}
    assert collector.repeated() == {}
    assert [*(tmp_path / "spans").iterdir()] == []


def _orphans(collector: TraceCollector) -> bool:
    """Whether a span has come whose parent has not."""
    ids = {each.id for each in collector.spans} | {""}
    return any(each.parent not in ids for each in collector.spans)


async def _ended(handle: object) -> Status:
    result = await handle.result()  # type: ignore[attr-defined]  # a handle of any type
    return Status.model_validate_json(json.dumps(result))
