"""Hostile clients of the gateway: each request is refused clearly, and nothing is stuck."""

import asyncio
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from baton.starter.gateway.access import LOCAL, Caller
from baton.starter.gateway.errors import TooManyError
from baton.starter.gateway.limits import RATE_SECONDS, CallerLimits
from baton.starter.gateway.protocol import parse_json
from baton.starter.gateway.settings import GatewaySettings
from baton.testing import Reply
from tests.harness.environment import Environment, line
from tests.harness.gateway import GatewayServer, key_file

BODY = {"target": "agent/one", "input": "Why?"}


async def raw(gateway: GatewayServer, request: bytes) -> bytes:
    """All that the gateway sends to a client that sends these bytes and half-closes the connection."""
    address = urlsplit(gateway.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(request)
    writer.write_eof()
    async with asyncio.timeout(20):
        response = await reader.read()
    writer.close()
    return response


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "", "[::2]", "a b", "[", "[x]"]
)
async def test_a_host_that_is_not_the_gateways_is_refused(gateway: GatewayServer, host: str) -> None:
    response = await raw(gateway, f"GET /targets HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert response.split()[1] in (b"403", b"400"), response


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:8080", "teams.example:443"])
async def test_own_hosts_are_accepted(served_env: Environment, host: str) -> None:
    async with GatewayServer.running(served_env, BATON_GATEWAY_HOSTS="teams.example") as gateway:
        await gateway.get("/targets", host=host)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/runs", "GET, HEAD, POST"),
        ("OPTIONS", "/runs/one-1/approve", "POST"),
        ("POST", "/v1/responses/resp_one-1", "DELETE, GET, HEAD"),
        ("HEAD", "/v1/chat/completions", "POST"),
        ("GET", "/ag-ui/agent/one", "POST"),
        ("GET", "/mcp", "POST"),
        ("DELETE", "/.well-known/agent-card.json", "GET, HEAD"),
        ("PATCH", "/ark/v1/namespaces/default/queries/q", "DELETE, GET, HEAD, PUT"),
        ("POST", "/healthz", "GET, HEAD"),
    ],
)
async def test_the_response_to_a_method_that_is_not_served_names_those_that_are(
    gateway: GatewayServer, method: str, path: str, allowed: str
) -> None:
    response = await gateway.http.request(method, path)
    assert (response.status_code, response.headers.get("allow")) == (405, allowed)
    assert method == "HEAD" or "Method Not Allowed" in response.text


async def test_two_hosts_in_a_request_are_refused(gateway: GatewayServer) -> None:
    response = await raw(gateway, b"GET /targets HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
    assert response.split()[1] in (b"403", b"400"), response


async def test_pages_of_other_origins_are_refused_and_allowed_ones_get_cors_headers(served_env: Environment) -> None:
    async with GatewayServer.running(served_env, BATON_GATEWAY_ORIGINS="https://app.example") as gateway:
        await gateway.get("/targets", 400, origin="http://[")
        for origin in ("https://evil.example", "null", "https://app.example.evil", "http://app.example"):
            await gateway.get("/targets", 403, origin=origin)
            assert (await gateway.http.options("/runs", headers={"origin": origin})).status_code == 403
        await gateway.get("/targets", origin=gateway.url)
        response = await gateway.http.get("/targets", headers={"origin": "https://app.example"})
        assert response.headers["access-control-allow-origin"] == "https://app.example"
        asked = {
            "origin": "https://app.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        }
        preflight = await gateway.http.options("/runs", headers=asked)
        assert preflight.status_code == 204
        assert "authorization" in preflight.headers["access-control-allow-headers"]


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_a_body_that_pages_can_send_unasked_is_refused(gateway: GatewayServer, media_type: str) -> None:
    response = await gateway.http.post("/runs", content=json.dumps(BODY), headers={"content-type": media_type})
    assert response.status_code == 400
    assert "Content-Type" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b'{"target": "agent/one", "target": "agent/two", "input": "?"}',
        b'{"target": NaN, "input": "?"}',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"\xff\xfe",
        b'{"target": "agent/one"}',
        b'{"target": "agent/one", "input": ""}',
        b'{"target": "agent/one", "input": {}}',
        b'{"target": "agent/one", "input": "?", "serviceAccount": "root"}',
        b'{"target": "agent/one", "input": "?", "timeout": "x"}',
        b'{"target": "agent/one", "input": "?", "parameters": {"a": {"valueFrom": {}}}}',
        b'{"target": "\\u0000", "input": "?"}',
        b'{"target": "../../etc", "input": "?"}',
    ],
)
async def test_a_wrong_body_is_refused_with_a_reason(gateway: GatewayServer, body: bytes) -> None:
    response = await gateway.http.post("/runs", content=body, headers={"content-type": "application/json"})
    assert response.status_code in (400, 404), response.text
    assert response.json()["error"]["message"]


async def test_a_body_above_the_limit_is_refused_before_it_is_read(served_env: Environment) -> None:
    async with GatewayServer.running(served_env, BATON_GATEWAY_MAX_BODY="10000") as gateway:
        await gateway.post("/runs", {**BODY, "input": "x" * 20_000}, 413)

        async def chunks() -> Any:
            for _ in range(100):
                yield b" " * 1_000

        headers = {"content-type": "application/json"}
        response = await gateway.http.post("/runs", content=chunks(), headers=headers)
        assert response.status_code == 413
        await gateway.get("/targets")


@pytest.mark.parametrize(
    "request_",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET /targets HTTP/9.9\r\n\r\n",
        b"GET /targets HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"1" * 5_000 + b"\r\n\r\n",
        b"POST /runs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /targets HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /targets HTTP/1.1\r\nHost: localhost\r\nA : b\r\n\r\n",
        b"GET http://evil.example/targets HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"BREW /runs HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /runs/%00%0d%0aX:%20y HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /runs/" + b"a" * 5_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
async def test_a_malformed_request_is_refused_and_the_gateway_goes_on(gateway: GatewayServer, request_: bytes) -> None:
    response = await raw(gateway, request_)
    assert not response or response.split()[1][:1] == b"4", response
    await gateway.get("/targets")


async def test_a_client_that_never_completes_its_request_is_disconnected(served_env: Environment) -> None:
    head = b"POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    async with GatewayServer.running(served_env, BATON_GATEWAY_REQUEST_TIMEOUT="0.2") as gateway:
        address = urlsplit(gateway.url)
        for sent in (b"", b"GET /tar", head, head + b"{"):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            writer.write(sent)
            async with asyncio.timeout(10):
                response = await reader.read()
            assert not response or b" 413 " in response or b" 408 " in response
            writer.close()


async def test_requests_above_the_rate_of_a_caller_are_refused_with_a_time(
    served_env: Environment, tmp_path: Path
) -> None:
    path, keys = key_file(tmp_path, {"alice": {}, "bob": {}})
    settings = {"BATON_GATEWAY_KEYS": str(path), "BATON_GATEWAY_RATE": "5"}
    async with GatewayServer.running(served_env, **settings) as gateway:
        for _ in range(5):
            await gateway.get("/targets", key=keys["alice"])
        response = await gateway.http.get("/targets", headers={"authorization": f"Bearer {keys['alice']}"})
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) > 0
        await gateway.get("/targets", key=keys["bob"])


def test_callers_of_whom_nothing_counts_are_forgotten() -> None:
    now = [0.0]
    limits = CallerLimits(GatewaySettings.of({"BATON_GATEWAY_RATE": "2"}), clock=lambda: now[0])
    streaming, *others = [Caller(f"caller-{number}", LOCAL.account) for number in range(1_000)]
    with limits.stream(streaming):
        for caller in others:
            limits.count_request(caller)
        for minute in range(1, 4):
            now[0] = minute * RATE_SECONDS
            limits.count_request(others[0])
            limits.count_request(Caller(f"new-{minute}", LOCAL.account))
        limits.count_request(others[0])
        with pytest.raises(TooManyError):
            limits.count_request(others[0])
        assert limits.callers < 5
        with pytest.raises(TooManyError), ExitStack() as streams:
            for _ in range(1_000):
                streams.enter_context(limits.stream(streaming))


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "9" * 5_000, "1e3", "٣"])
async def test_a_number_out_of_its_bounds_is_refused(gateway: GatewayServer, limit: str) -> None:
    assert (await gateway.get(f"/runs?limit={limit}", 400))["error"]["param"] == "limit"


async def test_streams_above_the_limit_of_a_caller_are_refused(served_env: Environment) -> None:
    async with GatewayServer.running(served_env, BATON_GATEWAY_MAX_STREAMS="2") as gateway:
        served_env.answer = lambda _: Reply(text="a", delay=60)
        run = await gateway.post("/runs", BODY, 201)
        path = f"/runs/{run['id']}/events"
        async with gateway.http.stream("GET", path) as one, gateway.http.stream("GET", path) as two:
            assert one.status_code == two.status_code == 200
            await gateway.get("/targets", 429)
        async with asyncio.timeout(20):
            while (await gateway.http.post(f"/runs/{run['id']}/cancel", json={})).status_code == 429:
                await asyncio.sleep(0.01)


async def test_a_secret_of_the_worker_is_in_no_error(served_env: Environment) -> None:
    async with GatewayServer.running(served_env) as gateway:
        for path in ("/runs/x", "/nothing", "/runs/x/events?after=y"):
            response = await gateway.http.get(path)
            assert response.status_code == 404
            assert set(response.json()["error"]) <= {"code", "message", "param"}


async def test_a_wrong_cursor_is_refused(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", "a"))
    run = await gateway.post("/runs", BODY, 201)
    refused = await gateway.get(f"/runs/{run['id']}/events?after=nonsense", 400)
    assert refused["error"]["param"] == "after"


def test_json_with_numbers_that_other_parsers_read_differently_is_refused() -> None:
    for body in (b'{"a": Infinity}', b'{"a": -Infinity}', b'{"a": 1, "a": 2}', b'{"a": 1e999}', b"9" * 5_000):
        with pytest.raises(Exception, match="body"):
            parse_json(body)


def test_half_an_emoji_in_json_is_replaced_in_texts_and_names_and_whole_ones_stay() -> None:
    assert parse_json(rb'{"a\ud83d": ["\ude00 \ud83d\ude00", 1, null], "b": "\\ud83d"}') == {
        "a\ufffd": ["\ufffd 😀", 1, None],
        "b": r"\ud83d",
    }
    for body in (rb'{"\ud83d": 1, "\ud83e": 2}', b'"\xed\xa0\xbd"', b"[" * 900 + rb'"\ud83d"' + b"]" * 899):
        with pytest.raises(Exception, match="body"):
            parse_json(body)
