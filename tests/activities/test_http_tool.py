"""Tests of the HTTP client of tools: redirects, sizes, failures, and private addresses."""

import asyncio
import contextlib
import re
import socket
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import anthropic
import httpx
import httpx2
import openai
import pytest
import pytest_asyncio

from baton.activities.runtime.outbound import (
    Destination,
    Outbound,
    check_public,
    public_address,
    reachable_address,
)
from baton.activities.runtime.secrets import RunSecrets, SecretStore
from baton.activities.tool.http import MAX_BYTES, RECONNECT_DELAYS, HttpClient
from baton.activities.tool.http_request import HttpRequest
from baton.contracts.errors import ToolFailed
from baton.resources.secret import Secrets
from baton.temporal.threads import UNTRUSTED_NAMES
from tests.harness.manifests import chosen_server, own_server
from tests.harness.tool_server import Answer, ToolServer

pytestmark = pytest.mark.usefixtures("without_lease_of_a_call")


@pytest_asyncio.fixture(loop_scope="session")
async def http() -> AsyncIterator[HttpClient]:
    http = HttpClient()
    yield http
    await http.close()


def request(url: str, method: str = "GET", *, body: bytes | None = None) -> HttpRequest:
    return request_to(own_server(url), method, body=body)


def request_to(server: Destination, method: str = "GET", *, body: bytes | None = None) -> HttpRequest:
    headers = ("X-Key", "hidden"), ("Content-Type", "text/plain")
    return HttpRequest(method=method, destination=server, headers=headers, body=body)


async def failure(http: HttpClient, asked: HttpRequest, seconds: float = 5, *, repeatable: bool = True) -> ToolFailed:
    with pytest.raises(ToolFailed) as failed:
        await http.send(asked, seconds, repeatable=repeatable)
    return failed.value


async def test_the_certificates_are_read_once_and_not_for_each_client() -> None:
    begun = time.process_time()
    httpx.create_ssl_context()
    once = time.process_time() - begun
    clients = [HttpClient() for _ in range(20)]
    assert time.process_time() - begun - once < 10 * once
    for client in clients:
        await client.close()


async def test_the_result_is_the_responses_text(http: HttpClient, tool_server: ToolServer) -> None:
    tool_server.answers(
        Answer("grüß dich".encode("latin-1"), headers={"content-type": "text/plain; charset=iso-8859-1"})
    )
    assert await http.send(request(tool_server.url), 5, repeatable=True) == "grüß dich"
    tool_server.answers(Answer("é", headers={"content-type": "text/plain; charset=nonsense"}))
    assert await http.send(request(tool_server.url), 5, repeatable=True) == "é"
    tool_server.answers(Answer("", status=204))
    assert await http.send(request(tool_server.url), 5, repeatable=True) == "(HTTP 204 No Content, empty body)"
    tool_server.answers(Answer("{broken json", headers={"content-type": "application/json"}))
    assert await http.send(request(tool_server.url), 5, repeatable=True) == "{broken json"


async def test_a_very_long_response_is_cut_with_a_note(http: HttpClient, tool_server: ToolServer) -> None:
    tool_server.answers(Answer("x" * 5_000_000))
    text = await http.send(request(tool_server.url), 5, repeatable=True)
    assert text == "x" * MAX_BYTES + "… [truncated: the response has 5,000,000 bytes]"


async def test_a_binary_response_is_replaced_by_its_type_and_size(http: HttpClient, tool_server: ToolServer) -> None:
    tool_server.answers(Answer(b"\x89PNG\0\0", headers={"content-type": "image/png"}))
    assert await http.send(request(tool_server.url), 5, repeatable=True) == "[not a text: image/png, 6 bytes]"


@pytest.mark.parametrize(
    ("status", "again"),
    [
        (400, False),
        (401, False),
        (404, False),
        (408, True),
        (409, True),
        (425, True),
        (429, True),
        (500, True),
        (503, True),
    ],
)
async def test_an_error_status_is_reported_with_its_text_and_retried_where_that_can_help(
    http: HttpClient, tool_server: ToolServer, status: int, again: bool
) -> None:
    tool_server.answers(Answer("no such\ncity", status, {"retry-after": "7"}))
    failed = await failure(http, request(tool_server.url))
    assert failed.message.startswith(f"{tool_server.host} answered HTTP {status}")
    assert failed.message.endswith(": no such city")
    assert failed.non_retryable is not again
    assert failed.next_retry_delay
    assert failed.next_retry_delay.total_seconds() == 7
    assert (await failure(http, request(tool_server.url), repeatable=False)).non_retryable


async def test_timeouts_broken_responses_and_refused_connections(http: HttpClient, tool_server: ToolServer) -> None:
    assert await http.send(request(tool_server.url), 5, repeatable=True) == "sunny"  # now there is a connection
    tool_server.answers(Answer(hang=True))
    failed = await failure(http, request(tool_server.url), 0.3)
    assert (failed.message, failed.non_retryable) == (f"{tool_server.host} did not respond within 0.3 s", False)
    failed = await failure(http, request(tool_server.url, "POST"), 0.3, repeatable=False)
    assert failed.message.endswith("in 0.3 s; whether it was executed is unknown")
    assert failed.non_retryable
    tool_server.answers(Answer("x" * 1_000, cut=100))
    failed = await failure(http, request(tool_server.url))
    assert failed.message.startswith(f"{tool_server.host} did not complete its response")
    failed = await failure(http, request("http://127.0.0.1:1/"))
    assert failed.message.startswith("127.0.0.1:1 can't be reached")
    assert not failed.non_retryable


@pytest.mark.full
async def test_a_request_that_may_be_sent_once_is_retried_until_there_is_a_connection(http: HttpClient) -> None:
    begun = time.monotonic()
    failed = await failure(http, request("http://127.0.0.1:1/", "POST"), repeatable=False)
    assert time.monotonic() - begun > sum(RECONNECT_DELAYS)
    assert failed.non_retryable
    assert "unknown" not in failed.message


@pytest.mark.parametrize(
    ("status", "method", "then"),
    [(301, "GET", "GET"), (302, "POST", "GET"), (303, "PUT", "GET"), (307, "POST", "POST"), (308, "PUT", "PUT")],
)
async def test_a_redirect_is_followed_with_the_method_it_asks_for(
    http: HttpClient, tool_server: ToolServer, status: int, method: str, then: str
) -> None:
    tool_server.answers(Answer(status=status, headers={"location": "/there?x=1"}), Answer("found"))
    assert await http.send(request(tool_server.url + "/here", method, body=b"text"), 5, repeatable=True) == "found"
    second = tool_server.seen[1]
    assert (second.method, second.path, second.headers["x-key"]) == (then, "/there?x=1", "hidden")
    assert second.body == ("text" if then == method and method != "GET" else second.body)


async def test_endless_redirects_are_given_up(http: HttpClient, tool_server: ToolServer) -> None:
    tool_server.answers(Answer(status=302, headers={"location": "/again"}))
    assert "redirected the request more than 5 times" in (await failure(http, request(tool_server.url))).message
    assert len(tool_server.seen) == 6
    tool_server.answers(Answer(status=302, headers={"location": "file:///etc/passwd"}))
    assert "to an address that is not HTTP" in (await failure(http, request(tool_server.url))).message


async def test_a_redirect_to_another_server_in_the_private_network_is_refused(
    http: HttpClient, tool_server: ToolServer
) -> None:
    with ToolServer().serving() as other:
        tool_server.answers(Answer(status=302, headers={"location": f"{other.url}/secret"}))
        failed = await failure(http, request(tool_server.url))
        assert "127.0.0.1 is in the worker's own network" in failed.message
        assert failed.non_retryable
        assert not other.seen


@pytest.mark.parametrize("status", [302, 307])
@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1:{port}/x", "http://localhost:{port}/x", "//127.0.0.1:{port}/x", "HTTP://127.0.0.1:{port}/x",
        "http://public.example@127.0.0.1:{port}/x", "http://2130706433:{port}/x", "http://0x7f.1:{port}/x",
        "http://[::ffff:127.0.0.1]:{port}/x", "http://[::1]:{port}/x", "http://0.0.0.0:{port}/x",
        "http://169.254.169.254/latest/meta-data/", "http://[fd00:ec2::254]/", "http://10.0.0.1/", "https://192.168.1.1/",
        "http://[64:ff9b::a9fe:a9fe]/", "https://127.0.0.1:{port}/x", "http://LOCALHOST.:{port}/x",
        "\\\\127.0.0.1:{port}\\x", "http:\\\\127.0.0.1:{port}/x", "http:127.0.0.1:{port}", "file:///etc/passwd", "ftp://127.0.0.1/",
        "gopher://127.0.0.1:{port}/", "data:text/plain,x", "http://127.0.0.1%00.example:{port}/", "http://127.0.0.1:{port}#@1.1.1.1/",
    ],
)  # fmt: skip
async def test_no_redirect_leads_into_the_private_network(
    http: HttpClient, tool_server: ToolServer, location: str, status: int
) -> None:
    with ToolServer().serving() as other:
        target = location.format(port=other.url.rpartition(":")[2])
        tool_server.answers(Answer(status=status, headers={"location": target}), Answer(status=404))
        told = (await failure(http, request(f"{tool_server.url}/here"), 60)).message  # some names are looked up
        # 404: the same server
        assert re.search("own network|not HTTP|can't be resolved|absolute URLs|404", told)
        assert not other.seen


async def test_no_chain_of_redirects_leads_into_the_private_network(http: HttpClient, tool_server: ToolServer) -> None:
    with ToolServer().serving() as other:
        steps = ["/a", tool_server.url + "/b", f"{other.url}/x"]
        tool_server.answers(*(Answer(status=307, headers={"location": each}) for each in steps))
        failed = await failure(http, request(tool_server.url, "POST", body=b"text"), repeatable=False)
        assert failed.message == "the server redirected the request, including its body, to another server"
        tool_server.answers(*(Answer(status=308, headers={"location": each}) for each in steps))
        assert "is in the worker's own network" in (await failure(http, request(tool_server.url))).message
        assert not other.seen


@pytest.mark.full
async def test_a_setting_allows_the_private_network_but_another_server_gets_no_headers(
    http: HttpClient, tool_server: ToolServer
) -> None:
    def request(url: str, method: str = "GET", *, body: bytes | None = None) -> HttpRequest:
        return request_to(chosen_server(url, private_hosts=True), method, body=body)

    with ToolServer().serving() as other:
        tool_server.answers(Answer(status=307, headers={"location": f"{other.url}/x"}))
        assert await http.send(request(tool_server.url), 5, repeatable=True) == "sunny"
        assert "x-key" not in other.seen[0].headers
        failed = await failure(http, request(tool_server.url, "PUT", body=b"text"))
        assert failed.message == "the server redirected the request, including its body, to another server"
        tool_server.answers(Answer(status=303, headers={"location": "http://127.0.0.1:1/"}))
        failed = await failure(http, request(tool_server.url, "POST", body=b"text"), repeatable=False)
        assert failed.message.endswith("whether it was executed is unknown")
        tool_server.answers(Answer())
        assert await http.send(request(tool_server.url.replace("127.0.0.1", "localhost")), 5, repeatable=True)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "localhost", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "100.64.0.1",
        "224.0.0.1", "::1", "fe80::1", "fc00::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2130706433",
        "0x7f.1", "fec0::1", "::127.0.0.1", "168.63.129.16", "0177.0.0.1", "0177.0x0.1", "127.1", "127.0.1",
        "0x7F000001", "017700000001", "0", "0xa9fea9fe", "LocalHost", "::", "0:0:0:0:0:0:0:1", "::ffff:7f00:1",
        "::ffff:10.0.0.1", "::FFFF:169.254.169.254", "64:ff9b:1::7f00:1", "2002:a9fe:a9fe::", "fe80::1%1",
        "fd00:ec2::254", "198.18.0.1", "192.0.0.192", "192.0.0.9", "::ffff:0:7f00:1",
    ],
)  # fmt: skip
async def test_a_host_in_an_argument_may_not_be_in_the_private_network(host: str, http: HttpClient) -> None:
    with pytest.raises(ToolFailed, match=r"is in the worker's own network.*BATON_ALLOW_PRIVATE_HOSTS"):
        await public_address(host, 80)


async def test_a_host_in_an_argument_may_be_public() -> None:
    assert await public_address("93.184.216.34", 443) == "93.184.216.34"
    assert await public_address("2606:4700::1111", 443) == "2606:4700::1111"
    with pytest.raises(ToolFailed, match="can't be resolved"):
        await public_address("no-such-host.invalid", 80)


@pytest.mark.parametrize("private", ["10.0.0.1", "::1", "fe80::1%eth0"])
def test_a_host_with_one_private_address_is_refused_whichever_address_comes_first(private: str) -> None:
    public = "93.184.216.34"
    check_public("h", [public, "2606:4700::1111"])
    for addresses in ([public, private], [private, public], [public, public, private]):
        with pytest.raises(ToolFailed, match="h is in the worker's own network"):
            check_public("h", addresses)


async def test_of_several_addresses_one_that_accepts_a_connection_is_used(tool_server: ToolServer) -> None:
    port = int(tool_server.url.rpartition(":")[2])
    for addresses in (["127.0.0.9", "127.0.0.1"], ["127.0.0.1", "127.0.0.9"], ["127.0.0.9", "127.0.0.8", "127.0.0.1"]):
        assert await reachable_address(addresses, port) == "127.0.0.1"
    assert await reachable_address(["127.0.0.9"], port) == "127.0.0.9", "the request tries its only one"


async def test_slow_look_ups_of_names_delay_neither_secrets_nor_redaction(tmp_path: Path) -> None:
    """They take all threads of the event loop, where libraries look names up, and all those for names of runs."""
    answered = threading.Event()
    secrets = SecretStore(Secrets(), {}, tmp_path)
    secrets.remember("sk-0123456789")
    slow = [asyncio.create_task(asyncio.to_thread(answered.wait)) for _ in range(50)]
    slow += [asyncio.create_task(UNTRUSTED_NAMES.run(answered.wait)) for _ in range(50)]
    try:
        async with asyncio.timeout(60):
            assert await secrets.of_run("f" * 64) == RunSecrets()
            assert await secrets.redact_long("sk-0123456789 " * 20_000) == "[secret] " * 20_000
        assert not any(each.done() for each in slow)
    finally:
        answered.set()
        await asyncio.gather(*slow)


async def test_an_untrusted_request_is_sent_to_the_address_that_was_checked(http: HttpClient) -> None:
    built = http._client(proxied=False).build_request("GET", "https://1.1.1.1:8443/a?b=c")
    for check in http._client(proxied=False).event_hooks["request"]:
        await check(built)
    assert str(built.url) == "https://1.1.1.1:8443/a?b=c"
    assert (built.headers["host"], built.extensions["sni_hostname"]) == ("1.1.1.1:8443", "1.1.1.1")


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize(
    "client_type",
    [httpx.AsyncClient, httpx2.AsyncClient, openai.DefaultAsyncHttpxClient, anthropic.DefaultAsyncHttpxClient],
)
async def test_a_guarded_client_uses_no_proxy(
    client_type: type[httpx.AsyncClient], guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy would connect to the address by itself, or look up the name of the server again."""
    for scheme in ("HTTP", "HTTPS", "ALL"):
        monkeypatch.setenv(f"{scheme}_PROXY", "http://127.0.0.1:9")
    server = chosen_server("http://1.1.1.1") if guarded else own_server("http://1.1.1.1")
    async with Outbound(None, server).open(client_type) as client:
        for url in ("http://1.1.1.1", "https://1.1.1.1"):
            is_direct = client._transport_for_url(client._merge_url(url)) is client._transport
            assert is_direct == guarded


async def test_a_guarded_client_refuses_an_unknown_scheme_as_any_client_does() -> None:
    async with Outbound(None, chosen_server("http://1.1.1.1")).open(httpx.AsyncClient) as client:
        with pytest.raises(httpx.UnsupportedProtocol):
            await client.get("ftp://1.1.1.1/card")


async def test_requests_share_no_cookies(http: HttpClient, tool_server: ToolServer) -> None:
    tool_server.answers(Answer(headers={"set-cookie": "session=1"}))
    for _ in range(2):
        await http.send(request(tool_server.url), 5, repeatable=True)
    assert "cookie" not in tool_server.seen[1].headers


async def test_many_slow_calls_hold_no_other_up(http: HttpClient, tool_server: ToolServer) -> None:
    with ToolServer().serving() as other:
        tool_server.answer = lambda _: Answer(hang=True)
        slow = [asyncio.create_task(http.send(request(tool_server.url), 600, repeatable=True)) for _ in range(150)]
        while len(tool_server.seen) < len(slow):
            await asyncio.sleep(0.05)
        assert await http.send(request(other.url), 10, repeatable=True) == "sunny"
        for each in slow:
            each.cancel()
        await asyncio.gather(*slow, return_exceptions=True)


@contextlib.asynccontextmanager
async def silent_port() -> AsyncIterator[str]:
    """An address at which no connection is made, and none is refused."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address, waiting = listener.getsockname(), [socket.socket() for _ in range(8)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(address)
        yield f"http://127.0.0.1:{address[1]}/"
        for each in waiting:
            each.close()


@pytest.mark.full
async def test_a_request_that_was_never_sent_was_not_begun_nor_carried_out(http: HttpClient) -> None:
    begun: list[str] = []

    async def begin() -> None:
        begun.append("begun")

    async with silent_port() as address:
        with pytest.raises(ToolFailed) as failed:
            await http.send(request(address, "POST"), 0.2, repeatable=False, begin=begin)
    assert "can't be reached" in failed.value.message
    assert "unknown" not in failed.value.message
    assert not begun


async def test_a_request_is_begun_when_there_is_a_connection_and_its_time_counts_from_then(
    http: HttpClient, tool_server: ToolServer
) -> None:
    seen: list[int] = []

    async def begin() -> None:
        seen.append(len(tool_server.seen))

    async def begin_slowly() -> None:
        await asyncio.sleep(0.5)  # longer than the request may take

    tool_server.answers(Answer(status=303, headers={"location": "/there"}), Answer("done"), Answer(hang=True))
    asked = request(tool_server.url, "POST", body=b"x")
    assert await http.send(asked, 60, repeatable=False, begin=begin) == "done"
    assert seen == [0]
    with pytest.raises(ToolFailed, match="did not respond"):
        await http.send(asked, 0.4, repeatable=False, begin=begin_slowly)
    assert len(tool_server.seen) == 3, "it was sent nevertheless"


@pytest.mark.parametrize("charset", ["zlib", "hex", "idna", "punycode", "rot13", "undefined", "unicode_escape", "\xff"])
async def test_a_charset_that_is_none_of_a_text_is_taken_for_utf_8(
    http: HttpClient, tool_server: ToolServer, charset: str
) -> None:
    tool_server.answers(Answer("é", headers={"content-type": f"text/plain; charset={charset}"}))
    assert await http.send(request(tool_server.url), 5, repeatable=True) == "é"


@pytest.mark.parametrize(
    "address", ["http://0177.0.0.1/", "http://1.2.3.4.5/", "http://[::1/", "http://a:99999999/", "http://\udc80/"]
)
async def test_an_address_that_is_none_fails_the_call(http: HttpClient, address: str) -> None:
    failed = await failure(http, request(address))
    assert "the URL of the request is invalid" in failed.message or "can't be reached" in failed.message
