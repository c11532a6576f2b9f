"""The gateway behind nginx, with the configuration that docs/gateway.md prints."""

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio

from baton.testing import Reply
from tests.harness.environment import Environment, Json
from tests.harness.gateway import GatewayServer, read_sse
from tests.harness.ports import own_port
from tests.harness.processes import ROOT

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
NAME = "teams.example.com"
"""The name of the gateway in the documentation."""

pytestmark = pytest.mark.skipif(NGINX is None, reason="there is no nginx here")


def documented() -> str:
    """The configuration in the documentation."""
    [block] = re.findall(r"```nginx\n(.*?)```", (ROOT / "docs" / "gateway.md").read_text(), re.DOTALL)
    assert isinstance(block, str)
    return block


@pytest_asyncio.fixture(loop_scope="session")
async def proxied(served_env: Environment, tmp_path: Path) -> AsyncIterator[GatewayServer]:
    """A gateway whose client goes through nginx."""
    port = own_port()
    async with GatewayServer.running(served_env, BATON_GATEWAY_HOSTS=NAME) as gateway:
        place = documented().replace("http://127.0.0.1:8080", f"http://127.0.0.1:{urlsplit(gateway.url).port}")
        temporary = "".join(
            f"{kind}_temp_path {tmp_path}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        configuration = tmp_path / "nginx.conf"
        configuration.write_text(
            f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/error.log; events {{}}\n"
            f"http {{ access_log off; {temporary}\nserver {{ listen 127.0.0.1:{port};\n{place}}} }}\n"
        )
        assert NGINX
        # Its workers may be another user, which may not enter the folder of the test.
        user = ["-g", "user root;"] if os.geteuid() == 0 else []
        process = await asyncio.create_subprocess_exec(NGINX, "-p", tmp_path, "-c", configuration, *user)
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
                http.headers["host"] = NAME
                while True:
                    with contextlib.suppress(httpx.TransportError):
                        if (await http.get("/healthz")).is_success:
                            break
                    assert process.returncode is None, (tmp_path / "error.log").read_text()
                    await asyncio.sleep(0.02)
                yield GatewayServer(served_env, f"http://{NAME}", http)
        finally:
            process.terminate()
            await process.wait()


async def test_words_pass_nginx_while_the_model_is_still_speaking(proxied: GatewayServer) -> None:
    words = " ".join(f"word{number}" for number in range(30))
    proxied.env.answer = lambda _: Reply(text=words, held=True)
    body = {"model": "agent/one", "stream": True, "messages": [{"role": "user", "content": "Why?"}]}
    text = ""
    was_speaking = False
    async with proxied.http.stream("POST", "/v1/chat/completions", json=body) as response:
        async for event in read_sse(response):
            if event["data"] != "[DONE]":
                content = event["data"]["choices"][0]["delta"].get("content") or ""
                text += content
                was_speaking |= bool(content) and not proxied.env.model.requests[0].answered
                if content:
                    proxied.env.model.release()
    assert text == words
    assert was_speaking


async def test_a_stream_through_nginx_goes_on_after_its_last_event(proxied: GatewayServer) -> None:
    proxied.env.answer = lambda request: Reply(text=f"word {len(request['messages'])}")
    run = await proxied.post("/runs", {"target": "team/duo", "input": "Why?"}, 201)
    first: list[Json] = []
    async with proxied.http.stream("GET", f"/runs/{run['id']}/events") as response:
        async for event in read_sse(response):
            first.append(event)
            if len(first) == 3:
                break
    rest = [event async for event in proxied.events(f"/runs/{run['id']}/events", last_event_id=first[-1]["id"])]
    durable = [event["id"] async for event in proxied.events(f"/runs/{run['id']}/events?wait=false")]
    received = [event["id"] for event in [*first, *rest]]
    assert [each for each in received if each in durable] == durable
    assert rest[-1]["event"] == "run.ended"


async def test_a_body_as_large_as_the_gateway_allows_passes_nginx(proxied: GatewayServer) -> None:
    question = {"target": "agent/one", "input": "x" * 20_000_000}
    response = await proxied.http.post("/runs", json=question)
    assert response.headers["content-type"] == "application/json"
    assert response.status_code != 413, response.text


async def test_an_error_of_the_gateway_passes_nginx_in_its_own_form(proxied: GatewayServer) -> None:
    missing = await proxied.get("/v1/models/nobody", 404)
    assert missing["error"]["code"] == "model_not_found"
    card = await proxied.get("/a2a/agent/one/.well-known/agent-card.json")
    assert card["name"]
