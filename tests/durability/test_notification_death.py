"""Workers that are killed while a webhook answers: the event is sent again, with its id, although the run has ended."""

import asyncio
import json
from pathlib import Path

import pytest
from temporalio.client import Client

from baton.starter.server.embedded import EmbeddedServer
from baton.testing import Reply
from tests.harness.environment import agent
from tests.harness.killable import KillableWorker
from tests.harness.tool_server import Answer, ToolServer


@pytest.mark.slow
async def test_a_killed_worker_loses_no_event(client: Client, server: EmbeddedServer, tmp_path: Path) -> None:
    with ToolServer().serving() as hook:
        hook.answers(Answer(hang=True), Answer())
        ready = KillableWorker.ready(client, server.address, tmp_path, lambda _: Reply(text="Because."))
        async with ready as killable:
            notify = [{"url": hook.url, "events": ["ended"]}]
            spec = {"input": "Why?", "target": {"type": "agent", "name": "one"}, "notify": notify}
            handle = await killable.start("query", spec=spec, resources=[agent("one")])
            await handle.result()
            while not hook.seen:
                await asyncio.sleep(0.02)
            killable.restart()
            while len(hook.seen) < 2:
                await asyncio.sleep(0.02)
            delivery = client.get_workflow_handle(f"notify/{hook.seen[0].headers['webhook-id']}")
            assert await delivery.result() == {"delivered": 1}
            assert hook.seen[0].body == hook.seen[1].body
            assert json.loads(hook.seen[0].body)["data"]["phase"] == "Completed"
            assert len({request.headers["webhook-id"] for request in hook.seen}) == 1
