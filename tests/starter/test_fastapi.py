"""The FastAPI sample: a run over HTTP, streamed, and continued after a lost connection."""

import asyncio
import importlib

import httpx
import pytest
import uvicorn

from baton.starter.scripted_model import ScriptLine
from baton.starter.server.embedded import EmbeddedServer
from tests.harness.environment import Environment, call
from tests.harness.ports import own_port
from tests.harness.processes import ROOT

SAMPLE = ROOT / "samples" / "fastapi_app.py"


async def used(port: int) -> tuple[list[str], list[str]]:
    """The types of the events of a run, and of those after the first message."""
    app = importlib.import_module("samples.fastapi_app").app
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        run = (await client.post("/runs", params={"question": "My cup broke.", "customer": "c-7"})).json()
        cursor, kinds = "", list[str]()
        async with client.stream("GET", f"/runs/{run}/events") as events:
            async for line in events.aiter_lines():
                field, _, value = line.partition(": ")
                if field == "id":
                    cursor = value
                if field == "event":
                    kinds.append(value)
                if kinds and kinds[-1] == "message":
                    break  # the connection is lost
        again = await client.get(f"/runs/{run}/events", headers={"Last-Event-ID": cursor})
        rest = [line.removeprefix("event: ") for line in again.text.splitlines() if line.startswith("event: ")]
    server.should_exit = True
    await serving
    return kinds, rest


@pytest.mark.full
async def test_events_are_streamed_and_continue_where_a_browser_has_stopped(
    env: Environment, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = {
        "clerk": ("You refund orders", [call("refund", order="A-7", euros=20), "Refunded."]),
        "writer": ("You tell the customer", ["Dear customer"]),
    }
    env.script(
        *(
            ScriptLine.model_validate({"agent": name, "system": system, "say": say})
            for name, (system, say) in lines.items()
        )
    )
    own = {"TEMPORAL_ADDRESS": server.address, "BATON_TASK_QUEUE": env.task_queue}
    for variable, value in {**env.worker_env, **own}.items():
        monkeypatch.setenv(variable, value)
    before, rest = await asyncio.to_thread(lambda: asyncio.run(used(own_port())))  # the app has a loop of its own
    assert before[0] == "run.started"
    assert rest[-1] == "run.ended"
    assert {"tool.returned", "message"} <= {*before}
    assert "turn.started" in rest


def test_the_tutorial_shows_the_sample_as_it_is() -> None:
    shown = (ROOT / "docs" / "python.md").read_text()
    code = SAMPLE.read_text().partition('"""\n\n')[2]
    assert code in shown
    assert len(code.splitlines()) <= 40
