"""OAuth tokens for MCP servers: refreshed by the workers, once for all of them, and stored without being readable."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from temporalio.client import Client

from baton.activities.context.value_resolver import ValueResolver
from baton.activities.runtime.secrets import SecretStore
from baton.activities.tool.mcp.access_tokens import TokenClient, TokenEndpoint
from baton.journal.database import Database
from baton.journal.token_store import TokenStore
from baton.resources.loader import load_files
from baton.resources.mcp_server import MCPServer
from baton.resources.problems import ManifestError
from tests.harness.authorized_mcp_server import CLIENT, CLIENT_SECRET, serve
from tests.harness.environment import Environment, Json, agent, call, line, manifest
from tests.harness.manifests import own_catalog
from tests.harness.mcp_process import McpServerProcess

FIRST = {"access_token": "access-token-0", "refresh": "refresh-token-0", "id": CLIENT, "secret": CLIENT_SECRET}
KEYS = {"refreshTokenKey": "refresh", "clientIDKey": "id", "clientSecretKey": "secret", "expiresAtKey": "until"}
USER = agent("one", tools=[{"name": "test-echo", "type": "mcp"}])


@contextmanager
def serving(folder: Path, seconds: float = 0, issuer: str = "") -> Iterator[McpServerProcess]:
    """A server, whose first access token is no longer valid."""
    (folder / "tokens").write_text("nobody-has-this refresh-token-0\n")
    with McpServerProcess("2026", folder, serve=partial(serve, folder, seconds, issuer)).running() as server:
        yield server


def given_out(folder: Path) -> list[str]:
    """The pairs of tokens that were given out, but for the first."""
    return (folder / "tokens").read_text().splitlines()[1:]


def write_own(folder: Path, mcp: McpServerProcess, values: Json | None = None, **authorization: Any) -> Path:
    """The worker's manifests: a server, and the Secret with its token."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "safe"},
        "stringData": {**FIRST, **(values or {})},
    }
    given = {"tokenSecretRef": {"name": "safe", **KEYS}, **authorization}
    file = folder / "own.yaml"
    file.write_text(yaml.safe_dump_all([secret, mcp.manifest(authorization=given), USER]))
    return file


async def ask(env: Environment) -> str:
    """What the tool answers to an agent, or why the query fails."""
    env.script(line("one", call("test-echo", message="hello"), "Done."))
    status = await env.status(await env.start_query([], "agent/one"))
    if not status.responses or not status.responses[0].messages:
        return str(status.error)
    return status.responses[0].messages[1].content


def holds(folder: Path, text: str) -> bool:
    """Whether a text is in the files of a journal."""
    return text.encode() in b"".join(file.read_bytes() for file in folder.glob("journal.db*") if file.is_file())


@pytest.mark.full
async def test_a_refused_token_is_refreshed_and_the_new_one_kept_for_later_runs_and_workers(
    client: Client, tmp_path: Path
) -> None:
    with serving(tmp_path) as mcp:
        own = load_files([write_own(tmp_path, mcp)])
        for _ in range(2):
            async with Environment.running(client, tmp_path, own) as env:
                assert [await ask(env), await ask(env)] == ["hello", "hello"]
    assert given_out(tmp_path) == ["access-token-1 refresh-token-1"]


async def test_a_token_that_has_expired_is_refreshed_before_it_is_sent(client: Client, tmp_path: Path) -> None:
    with serving(tmp_path) as mcp:
        (tmp_path / "tokens").write_text("access-token-0 refresh-token-0\n")
        own = load_files([write_own(tmp_path, mcp, {"until": "2026-01-31T10:00:00Z"})])
        async with Environment.running(client, tmp_path, own) as env:
            assert await ask(env) == "hello"
    assert given_out(tmp_path) == ["access-token-1 refresh-token-1"]


@pytest.mark.full
async def test_many_runs_of_two_workers_refresh_a_token_once(client: Client, tmp_path: Path) -> None:
    with serving(tmp_path, seconds=1) as mcp:
        own = load_files([write_own(tmp_path, mcp)])
        async with Environment.running(client, tmp_path, own) as one, Environment.running(client, tmp_path, own) as two:
            asked = await asyncio.gather(*(ask(each) for each in (one, two) * 5))
    assert asked == ["hello"] * 10
    assert len(given_out(tmp_path)) == 1


@pytest.mark.full
async def test_no_token_is_lost_where_the_run_that_refreshes_it_is_canceled(client: Client, tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.touch()
    with serving(tmp_path) as mcp:
        own = load_files([write_own(tmp_path, mcp)])
        async with Environment.running(client, tmp_path, own) as env:
            handle = await env.start_query([], "agent/one")
            async with asyncio.timeout(120):
                while not given_out(tmp_path):
                    await asyncio.sleep(0.05)
            await handle.signal("cancel")
            assert (await env.status(handle)).phase == "Canceled"
            held.unlink()
            assert await ask(env) == "hello"
    assert len(given_out(tmp_path)) == 1


@pytest.mark.full
async def test_what_a_secret_holds_anew_is_used_in_place_of_what_was_refreshed(client: Client, tmp_path: Path) -> None:
    with serving(tmp_path) as mcp:
        own = write_own(tmp_path, mcp)
        async with Environment.running(client, tmp_path, load_files([own])) as env:
            assert await ask(env) == "hello"
            with (tmp_path / "tokens").open("a") as tokens:
                tokens.write("by-a-person-1 by-a-person-2\n")
            assert "HTTP 401" in await ask(env)
            write_own(tmp_path, mcp, {"access_token": "by-a-person-1", "refresh": "by-a-person-2"})
            assert await ask(env) == "hello"
    assert len(given_out(tmp_path)) == 2


async def test_no_token_is_in_a_history_or_readable_in_the_journal(client: Client, tmp_path: Path) -> None:
    with serving(tmp_path) as mcp:
        async with Environment.running(client, tmp_path, load_files([write_own(tmp_path, mcp)])) as env:
            env.script(line("one", call("test-echo", message="access-token-1 refresh-token-1"), "Done."))
            assert (await env.status(await env.start_query([], "agent/one"))).phase == "Completed"
            histories = [str(await run.fetch_history()) async for run in env.closed_runs()]
    for each in ("access-token-1", "refresh-token-1", "refresh-token-0", CLIENT_SECRET):
        assert not await asyncio.to_thread(holds, tmp_path, each)
        assert not any(each in history for history in histories)
    assert given_out(tmp_path) == ["access-token-1 refresh-token-1"]


async def test_a_refresh_that_is_refused_is_told_with_the_server_and_the_reason(client: Client, tmp_path: Path) -> None:
    with serving(tmp_path) as mcp:
        own = load_files([write_own(tmp_path, mcp, {"refresh": "an-older-one"})])
        async with Environment.running(client, tmp_path, own) as env:
            error = await ask(env)
    assert f"the token of the MCP server test can't be refreshed: 127.0.0.1:{mcp.port} answered HTTP 400" in error
    assert "refresh token does not exist" in error


async def test_an_authorization_server_elsewhere_is_asked_if_the_manifest_names_it(
    client: Client, tmp_path: Path
) -> None:
    with serving(tmp_path) as authorization, serving(tmp_path, issuer=authorization.url.removesuffix("/mcp")) as mcp:
        async with Environment.running(client, tmp_path, load_files([write_own(tmp_path, mcp)])) as env:
            assert f"it names the authorization server {authorization.url.removesuffix('mcp')}: " in await ask(env)
        assert given_out(tmp_path) == []
        named = {"tokenEndpoint": {"value": f"http://127.0.0.1:{authorization.port}/token"}}
        async with Environment.running(client, tmp_path, load_files([write_own(tmp_path, mcp, **named)])) as env:
            assert await ask(env) == "hello"


async def test_the_token_of_a_server_that_a_run_brings_is_not_refreshed(client: Client, tmp_path: Path) -> None:
    with serving(tmp_path) as mcp:
        file = write_own(tmp_path, mcp)
        secret, server, user = yaml.safe_load_all(file.read_text())
        secret["metadata"]["annotations"] = {"baton/allow-inline": "127.0.0.1"}
        file.write_text(yaml.safe_dump(secret))
        variables = {"BATON_ALLOW_PRIVATE_HOSTS": "1", "BATON_INLINE_MANIFESTS": "no-secrets"}
        async with Environment.running(client, tmp_path, load_files([file]), variables=variables) as env:
            assert "HTTP 401" in str((await env.status(await env.start_query([server, user], "agent/one"))).error)
    assert given_out(tmp_path) == []


async def test_a_token_is_leased_to_one_at_a_time_until_it_is_another_one(journal_url: str) -> None:
    async with Database.open(journal_url, "default") as database:
        one, other = TokenStore(database), TokenStore(database)
        assert await one.lease("held", "", 60)
        assert not await other.lease("held", "", 60)
        assert await one.lease("id", "", 0.5)
        await asyncio.sleep(0.6)
        assert await other.lease("id", "", 60)
        await other.write("id", "", "new")
        assert [await one.lease("id", "", 60), await one.read("id"), await one.read("unknown")] == [0, "new", ""]
        lease = await one.lease("id", "new", 60)
        await other.release("id", lease - 1)
        assert not await other.lease("id", "new", 60)
        await one.release("id", lease)
        assert await other.lease("id", "new", 60)


async def test_a_server_that_refuses_every_token_uses_up_no_more_than_one(client: Client, tmp_path: Path) -> None:
    with serving(tmp_path) as mcp:
        async with Environment.running(client, tmp_path, load_files([write_own(tmp_path, mcp)])) as env:
            assert await ask(env) == "hello"
            (tmp_path / "revoked").touch()
            assert "HTTP 401" in await ask(env)
            assert "HTTP 401" in await ask(env)
    assert len(given_out(tmp_path)) == 1


async def test_only_a_refused_token_is_refreshed_and_no_other_error_is_hidden(client: Client, tmp_path: Path) -> None:
    with serving(tmp_path) as mcp:
        (tmp_path / "tokens").write_text("access-token-0 refresh-token-0\n")
        server = mcp.manifest()["spec"]["address"].replace("/mcp", "/elsewhere")
        own = write_own(tmp_path, mcp)
        own.write_text(own.read_text().replace(mcp.url, server))
        async with Environment.running(client, tmp_path, load_files([own])) as env:
            assert "HTTP 404" in await ask(env)
    assert given_out(tmp_path) == []


async def test_a_client_that_sends_its_secret_in_the_form_is_known_too(client: Client, tmp_path: Path) -> None:
    with serving(tmp_path) as mcp:
        (tmp_path / "post").touch()
        async with Environment.running(client, tmp_path, load_files([write_own(tmp_path, mcp)])) as env:
            assert await ask(env) == "hello"


async def test_a_refresh_token_goes_to_the_address_of_now_and_not_to_that_of_an_earlier_refresh(tmp_path: Path) -> None:
    with serving(tmp_path) as mcp:
        own = load_files([write_own(tmp_path, mcp)])
        server = next(each for each in own.catalog.manifests if isinstance(each, MCPServer))
        values, client = (
            ValueResolver(own_catalog(*own.catalog.manifests), SecretStore(own.secrets, {})),
            TokenClient(str),
        )
        earlier = TokenEndpoint(endpoint="http://127.0.0.1:1/token", resource="http://127.0.0.1:1/mcp")
        elsewhere = TokenEndpoint(
            endpoint=mcp.url.replace("/mcp", "/token"), resource=mcp.url.replace("/mcp", "/other")
        )
        token = "refresh-token-0"
        for known in (earlier, elsewhere):
            refreshed = await client.refresh(server, values, token, known)
            token = refreshed.refresh
            assert refreshed.place.resource == mcp.url
        await client.close()


@pytest.mark.parametrize("chosen", [{"queryParameterRef": {"name": "where"}}, {"contributionsRef": {"key": "k"}}])
def test_no_run_chooses_where_a_refresh_token_is_sent(tmp_path: Path, chosen: Json) -> None:
    authorization = {"tokenSecretRef": {"name": "safe", "refreshTokenKey": "r"}, "tokenEndpoint": {"valueFrom": chosen}}
    file = tmp_path / "server.yaml"
    file.write_text(yaml.safe_dump(manifest("MCPServer", "t", {"address": "http://h", "authorization": authorization})))
    with pytest.raises(ManifestError, match="tokenEndpoint: can't be chosen by a run"):
        load_files([file])


@pytest.mark.parametrize("field", ["accessTokenKey", "refreshTokenKey"])
def test_an_endpoint_without_a_token_to_refresh_is_refused(tmp_path: Path, field: str) -> None:
    authorization = {"tokenSecretRef": {"name": "safe", field: "k"}, "tokenEndpoint": {"value": "https://a.example"}}
    file = tmp_path / "server.yaml"
    file.write_text(
        yaml.safe_dump(manifest("MCPServer", "test", {"address": "http://h", "authorization": authorization}))
    )
    if field == "refreshTokenKey":
        assert load_files([file]).catalog.manifests
        return
    with pytest.raises(ManifestError, match=r"spec.authorization.tokenEndpoint: needs tokenSecretRef.refreshTokenKey"):
        load_files([file])
