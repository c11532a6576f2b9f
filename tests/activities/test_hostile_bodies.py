"""What servers answer is bounded while it is unpacked: of tools, models, agents and MCP servers alike."""

import gzip
import resource
import zlib
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

import httpx
import httpx2
import pytest
import pytest_asyncio

from baton.activities.context.metering import ChainedModel
from baton.activities.context.value_resolver import ValueResolver
from baton.activities.model.anthropic import AnthropicProvider
from baton.activities.model.bedrock import BedrockProvider
from baton.activities.model.openai import OpenAIProvider
from baton.activities.model.provider import ModelRequest, Provider
from baton.activities.runtime.outbound import BodyLimits, Outbound
from baton.activities.runtime.secrets import SecretStore
from baton.activities.tool.http import MAX_BYTES, HttpClient
from baton.activities.tool.http_request import HttpRequest
from baton.activities.tool.mcp.http_client import MAX_ANSWER, open_mcp_client
from baton.contracts.errors import AnswerTooLong, ModelRejected, ToolFailed
from baton.contracts.message import Message
from baton.resources.model import Model
from baton.resources.secret import Secrets
from tests.harness.environment import Environment, Json, agent, manifest
from tests.harness.event_loop import watched_loop
from tests.harness.manifests import model, own_catalog, own_server
from tests.harness.tool_server import Answer, ToolServer

pytestmark = pytest.mark.usefixtures("without_lease_of_a_call")

SIZE = 400_000_000
HELD = 0.1


@cache
def bomb(form: str) -> bytes:
    """Zeros, packed to a thousandth, or what is not packed. That takes a second: too long where tests are listed."""
    if form == "none":
        return b"not packed at all"
    if form == "gzip twice":
        return gzip.compress(bomb("gzip"))
    packer = zlib.compressobj(9, wbits={"gzip": 31, "deflate": 15, "raw": -15}[form])
    part = bytes(1_000_000)
    return b"".join(packer.compress(part) for _ in range(SIZE // len(part))) + packer.flush()


PACKED = [
    ("gzip", "gzip"),
    ("x-gzip", "gzip"),
    ("deflate", "deflate"),
    ("gzip, gzip", "gzip twice"),
    ("GZIP,deflate", "gzip twice"),
    ("br", "gzip"),
    ("zstd", "gzip"),
    ("identity, gzip", "gzip"),
    ("gzip", "none"),
]
"""Headers ``Content-Encoding``, and forms of a bomb."""


def peak() -> int:
    """The most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1_000


@pytest_asyncio.fixture(loop_scope="session")
async def http() -> AsyncIterator[HttpClient]:
    http = HttpClient()
    yield http
    await http.close()


def request(url: str, method: str = "GET") -> HttpRequest:
    return HttpRequest(method=method, destination=own_server(url), headers=(), body=None)


@pytest.mark.full
@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize(("encoding", "form"), PACKED)
async def test_a_tool_unpacks_no_more_than_it_reads(
    http: HttpClient, tool_server: ToolServer, encoding: str, form: str, status: int
) -> None:
    tool_server.answers(Answer(bomb(form), status, {"content-encoding": encoding, "content-type": "text/css"}))
    before = peak()
    async with watched_loop() as waits:
        try:
            said = await http.send(request(tool_server.url), 20, repeatable=True)
        except ToolFailed as failed:
            said = failed.message
    assert peak() - before < 50
    assert waits.held < HELD
    assert "not a text" in said or "unsupported content encoding" in said or "can't be decompressed" in said
    assert tool_server.seen[0].headers["accept-encoding"] == "identity"


async def test_a_tool_reads_a_packed_answer_that_nobody_asked_for(http: HttpClient, tool_server: ToolServer) -> None:
    for encoding, packed in (("gzip", gzip.compress(b"sunny")), ("deflate", zlib.compress(b"sunny"))):
        tool_server.answers(Answer(packed, headers={"content-encoding": encoding}))
        assert await http.send(request(tool_server.url), 5, repeatable=True) == "sunny"
    tool_server.answers(Answer(gzip.compress(b"x" * 2 * MAX_BYTES), headers={"content-encoding": "gzip"}))
    said = await http.send(request(tool_server.url), 5, repeatable=True)
    assert said.startswith("x" * MAX_BYTES + "… [truncated: the response has more than")


@pytest.mark.parametrize("status", [200, 302, 500])
@pytest.mark.parametrize("library", [httpx, httpx2])
async def test_any_client_is_bounded_also_in_redirects_and_errors(
    tool_server: ToolServer, library: Any, status: int
) -> None:
    outbound = Outbound(BodyLimits(1_000_000, 100), own_server(tool_server.url))
    headers = {"content-encoding": "gzip", "location": "/"}
    tool_server.answers(Answer(bomb("gzip"), status, headers), Answer("[" * 200))
    async with outbound.open(library.AsyncClient) as client:
        client.follow_redirects = True
        with pytest.raises(ToolFailed, match="sent more than 1,000,000 bytes"):
            await client.get(tool_server.url)
        with pytest.raises(ToolFailed, match="sent more than 100 objects"):
            await client.get(tool_server.url)


@pytest.mark.full
@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_a_models_server_cant_exhaust_the_worker(
    env: Environment, tool_server: ToolServer, provider: str, status: int
) -> None:
    kind = "text/event-stream" if status == 200 else "application/json"
    tool_server.answers(Answer(bomb("gzip"), status, {"content-encoding": "gzip", "content-type": kind}))
    config = {provider: {"baseUrl": tool_server.url}}
    spec = {"provider": provider, "model": {"value": "m"}, "config": config}
    evil = {**model(), "metadata": {"name": "evil"}, "spec": spec}
    before = peak()
    async with watched_loop() as waits:
        status_ = await env.status(await env.start_query([agent("a", modelRef={"name": "evil"}), evil], "agent/a"))
    assert peak() - before < 150
    assert waits.held < 2 * HELD
    assert "sent more than 20,000,000 bytes" in repr(status_)


LINES = b"data: " + b"x" * 1_000 + b"\n"


@pytest.mark.parametrize("blank", [b"\n", b"\r\n\r\n", b"\r\r"])
async def test_a_stream_of_many_events_is_read_and_one_event_without_end_is_not(
    tool_server: ToolServer, blank: bytes
) -> None:
    kind = {"content-type": "text/event-stream"}
    outbound = Outbound(BodyLimits(MAX_ANSWER, None), own_server(tool_server.url))
    endless, many = LINES * 6_000, (LINES * 1_000 + blank) * 6
    tool_server.answers(*(Answer(each, headers=kind) for each in (endless, many, endless, many)))
    async with outbound.open(httpx.AsyncClient) as client:
        with pytest.raises(ToolFailed, match="sent more than 4,000,000 bytes"):
            await client.get(tool_server.url)
        assert len((await client.get(tool_server.url)).content) == len(many)
    failures: list[str] = []
    async with open_mcp_client(own_server(tool_server.url), {}, on_failure=lambda: failures.append("failed")) as mcp:
        assert len((await mcp.get(tool_server.url)).content) <= MAX_ANSWER
        assert len((await mcp.get(tool_server.url)).content) == len(many)
    assert failures == ["failed"], "the old transport closes its connection then"


async def test_an_error_of_bedrock_is_not_read_without_end(tool_server: ToolServer) -> None:
    tool_server.answers(Answer(b"x" * 30_000_000, 500))
    before = peak()
    with pytest.raises(AnswerTooLong, match="sent more than 20,000,000 bytes"):
        await ask_bedrock(tool_server.url)
    assert peak() - before < 100


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_bedrock_is_not_followed_to_another_address(tool_server: ToolServer, status: int) -> None:
    tool_server.answers(Answer("", status, {"location": f"{tool_server.url}/elsewhere"}), Answer("{}", 400))
    with pytest.raises(ModelRejected, match=r"127\.0\.0\.1 sent a redirect"):
        await ask_bedrock(tool_server.url)
    assert len(tool_server.seen) == 1


REDIRECTING = [("openai", "", "authorization"), ("azure", "2024-10-21", "api-key"), ("anthropic", "", "authorization")]


@pytest.mark.parametrize(("provider", "version", "key"), REDIRECTING)
@pytest.mark.parametrize("status", [302, 307, 308])
async def test_a_model_is_not_followed_to_another_address(
    tool_server: ToolServer, provider: str, version: str, key: str, status: int
) -> None:
    tool_server.answers(Answer("", status, {"location": f"{tool_server.url}/elsewhere"}), Answer("{}", 400))
    config = {"baseUrl": tool_server.url, "apiKey": "k-0123456789", **({"apiVersion": version} if version else {})}
    asking = AnthropicProvider() if provider == "anthropic" else OpenAIProvider()
    with pytest.raises(ModelRejected, match=rf"127\.0\.0\.1:\d+ answered HTTP {status}"):
        await ask(asking, {"provider": provider, "model": "c", "config": {provider: config}})
    assert [key in each.headers for each in tool_server.seen] == [True]


async def ask_bedrock(url: str) -> None:
    """Asks a model of Bedrock at an address."""
    keys = {"accessKeyId": "AKIA0123456789", "secretAccessKey": "secret-0123456789", "region": "eu-central-1"}
    spec = {"provider": "bedrock", "model": "c", "config": {"bedrock": {"baseUrl": url, **keys}}}
    await ask(BedrockProvider(), spec)


async def ask(provider: Provider, spec: Json) -> None:
    """Asks a model by its provider."""
    given = Model.model_validate(manifest("Model", "m", spec))
    values = ValueResolver(own_catalog(given), SecretStore(Secrets(), {}))
    try:
        asked = ModelRequest([Message(role="user", content="Why?")])
        await provider.ask(ChainedModel(given, "m"), values, asked, lambda _: None)
    finally:
        await provider.close()
