"""Who chooses a server decides what it gets: one that a run or a model chooses is guarded, and gets no Secret."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from baton.resources.agent import Agent
from baton.resources.catalog import Catalog
from baton.resources.provenance import Provenance
from baton.resources.run_catalog import RunCatalog
from baton.resources.tool import Tool
from tests.activities.test_inline_manifests import (
    HEADERS,
    KEY,
    OF_KEY,
    PRIVATE,
    http_tool,
    loaded,
    model,
    secret,
    working,
)
from tests.harness.environment import Environment, Json, agent, call, line, manifest
from tests.harness.manifests import prealpha
from tests.harness.tool_server import Answer, ToolServer
from tests.workflows.test_approval import approve, pending

WHERE: Json = {"valueFrom": {"queryParameterRef": {"name": "where"}}}
ON_MODEL = agent("a", modelRef={"name": "gpt"})
ON_ENGINE = agent("a", executionEngine={"name": "e"})
ON_A2A = {**agent("a", executionEngine={"name": "a2a"})} | {
    "metadata": {"name": "a", "annotations": {"a2a.server/name": "far"}}
}


def with_base(each: Json) -> Json:
    """The manifest with a parameter ``base``, which is the query's."""
    return {**each, "spec": {**each["spec"], "parameters": [{"name": "base", **WHERE}]}}


CHOSEN: dict[str, list[Json]] = {
    "a tool": [agent("a", "look"), http_tool("{{where}}/look", headers=HEADERS)],
    "a tool by its own parameter": [agent("a", "look"), with_base(http_tool("{{base}}/look", headers=HEADERS))],
    "a tool by its agent's parameter": [with_base(agent("a", "look")), http_tool("{{base}}/look", headers=HEADERS)],
    "a tool's body": [
        agent("a", "look", parameters=[{"name": "k", **OF_KEY}]),
        http_tool("{{where}}/look", method="POST", body="{{k}}"),
    ],
    "a tool's preset argument": [
        agent(
            "a",
            tools=[{"name": "look", "partial": {"parameters": [{"name": "key", **OF_KEY}]}}],
        ),
        http_tool("{{where}}/look"),
    ],
    "a model": [ON_MODEL, model(WHERE, apiKey=OF_KEY)],
    "a model's header": [ON_MODEL, model(WHERE, headers=HEADERS)],
    "a model of Anthropic": [ON_MODEL, model(WHERE, provider="anthropic", apiKey=OF_KEY)],
    "a model of Bedrock": [ON_MODEL, model(WHERE, provider="bedrock", apiKey=OF_KEY)],
    "an agent's prompt": [
        agent("a", prompt="Say {{k}}.", modelRef={"name": "gpt"}, parameters=[{"name": "k", **OF_KEY}]),
        model(WHERE),
    ],
    "an agent's override": [
        agent("a", modelRef={"name": "gpt"}, overrides=[{"resourceType": "model", "headers": HEADERS}]),
        model(WHERE),
    ],
    "an engine": [ON_ENGINE, prealpha("ExecutionEngine", "e", {"type": "x", "address": WHERE, "headers": HEADERS})],
    "an A2A server": [ON_A2A, prealpha("A2AServer", "far", {"address": WHERE, "headers": HEADERS})],
    "an MCP server": [agent("a", "m"), manifest("MCPServer", "m", {"address": WHERE, "headers": HEADERS})],
    "a Memory": [agent("a"), manifest("Memory", "default", {"address": WHERE, "headers": HEADERS})],
}
"""Manifests of the worker whose server a parameter of the query chooses, and which send it a Secret."""


async def asked(env: Environment, url: str) -> str:
    """All that is known of a query that names the server."""
    spec = {
        "input": "Why?",
        "target": {"type": "agent", "name": "a"},
        "parameters": [{"name": "where", "value": url}],
    }
    handle = await env.start("query", {"spec": spec})
    return repr(await env.status(handle)) + json.dumps(env.rows())


@pytest.mark.parametrize("trust", ["no-secrets", "all"])
@pytest.mark.parametrize("kind", [*CHOSEN])
async def test_a_server_that_a_run_chooses_gets_no_secret_of_the_worker(
    env: Environment, tool_server: ToolServer, kind: str, trust: str
) -> None:
    """Not even where the worker trusts all clients: programs fill in parameters with what their own users write."""
    async with working(env, secret(), *CHOSEN[kind], trust=trust, **PRIVATE) as here:
        here.script(line("a", call("look"), "done"))
        told = await asked(here, tool_server.url)
    assert "may not use the Secret" in told
    assert KEY not in told
    assert tool_server.seen == []


UNSECRET: dict[str, list[Json]] = {
    "a tool": [agent("a", "look"), http_tool("{{where}}/look")],
    "a model": [ON_MODEL, model(WHERE)],
    "a model of Anthropic": [ON_MODEL, model(WHERE, provider="anthropic")],
    "an engine": [ON_ENGINE, prealpha("ExecutionEngine", "e", {"type": "x", "address": WHERE})],
    "an A2A server": [ON_A2A, prealpha("A2AServer", "far", {"address": WHERE})],
    "an MCP server": [agent("a", "m"), manifest("MCPServer", "m", {"address": WHERE})],
    "a Memory": [agent("a"), manifest("Memory", "default", {"address": WHERE})],
}


@pytest.mark.parametrize("trust", ["no-secrets", "all"])
@pytest.mark.parametrize("kind", [*UNSECRET])
async def test_a_server_that_a_run_chooses_is_not_in_the_workers_own_network(
    env: Environment, tool_server: ToolServer, kind: str, trust: str
) -> None:
    async with working(env, *UNSECRET[kind], trust=trust) as here:
        here.script(line("a", call("look"), "done"))
        assert "is in the worker's own network" in await asked(here, tool_server.url)
    assert tool_server.seen == []


async def test_a_query_of_the_worker_chooses_servers_as_its_other_manifests_do(
    env: Environment, tool_server: ToolServer
) -> None:
    given = {"input": "Why?", "target": {"type": "agent", "name": "a"}}
    own = manifest("Query", "q", {**given, "parameters": [{"name": "where", "value": tool_server.url}]})
    async with working(env, secret(), own, *CHOSEN["a tool"]) as here:
        here.script(line("a", call("look"), "done"))
        assert (await here.status(await here.start("query", {"name": "q"}))).message == "done"
    assert [each.headers["x"] for each in tool_server.seen] == [KEY]


OPEN = http_tool("http://{host}/", headers=HEADERS)
OPEN["spec"]["inputSchema"] = {"type": "object", "properties": {"host": {"type": "string"}}}


@pytest.mark.parametrize(("hosts", "sent"), [(None, []), ("example.com", []), ("127.*", [KEY])])
async def test_a_model_chooses_a_server_for_a_secret_only_among_the_hosts_that_the_secret_names(
    env: Environment, tool_server: ToolServer, hosts: str | None, sent: list[str]
) -> None:
    async with working(env, secret(hosts), agent("a", "look"), OPEN, **PRIVATE) as here:
        here.script(line("a", call("look", host=tool_server.url.removeprefix("http://")), "done"))
        turn = await here.turn_result(await here.start("agent", {"agent": "a", "input": "Why?"}))
    assert turn.message == "done"
    assert [each.headers["x"] for each in tool_server.seen] == sent
    assert sent or "may not use the Secret 'default/keys'" in turn.messages[1].content


@pytest.mark.parametrize("private", [False, True], ids=["guarded", "private hosts"])
async def test_the_address_in_the_annotations_of_an_inline_agent_is_guarded(
    env: Environment, tool_server: ToolServer, private: bool
) -> None:
    """It is named like an A2AServer of the worker, which it isn't."""
    tool_server.answers(Answer(status=404))
    inline = agent("a", executionEngine={"name": "a2a"})
    inline["metadata"]["annotations"] = {"ark.mckinsey.com/a2a-server-address": tool_server.url}
    own = prealpha("A2AServer", "a", {"address": "http://127.0.0.1:1", "headers": HEADERS})
    async with working(env, secret(), own, **(PRIVATE if private else {})) as here:
        given = {"agent": "a", "input": "Why?", "resources": [inline]}
        told = repr(await here.turn_result(await here.start("agent", given)))
    assert ("is in the worker's own network" in told) is not private
    assert (len(tool_server.seen) > 0) is private
    assert KEY not in repr(tool_server.seen)


async def test_a_tool_that_destroys_is_as_inline_as_any_other(env: Environment, tool_server: ToolServer) -> None:
    """The setting by which it waits for a person changes its manifest, and not what it may use."""
    inline = http_tool(tool_server.url, headers=HEADERS)
    inline["spec"]["annotations"] = {"destructiveHint": True}
    async with working(env, secret(), **PRIVATE, BATON_APPROVE_DESTRUCTIVE="1") as here:
        here.script(line("a", call("look"), "done"))
        handle = await here.start("agent", {"agent": "a", "input": "Why?", "resources": [agent("a", "look"), inline]})
        (waiting,) = await pending(handle)
        await approve(handle, waiting)
        assert "may not use the Secret" in repr(await here.turn_result(handle))
    assert tool_server.seen == []


def run_catalog(*manifests: Json, provenance: Provenance = Provenance.INLINE) -> RunCatalog:
    return RunCatalog.of(loaded(*manifests).catalog, lambda _: provenance)


def test_no_catalog_of_a_run_is_made_without_the_provenance_of_each_manifest() -> None:
    one = Agent.model_validate(agent("one"))
    known: dict[str, Any] = {"registered_as": "", "account": "", "notices": ()}
    with pytest.raises(ValidationError, match=r"manifests without a provenance.*Agent/default/one"):
        RunCatalog(manifests=(one,), provenance={}, **known)
    with pytest.raises(ValidationError, match=r"provenance without a manifest: Agent/default/two"):
        RunCatalog(manifests=(), provenance={"Agent/default/two": Provenance.FILES}, **known)
    for field in ("provenance", *known):
        complete = {"provenance": {one.id: Provenance.FILES}, **known}
        del complete[field]
        with pytest.raises(ValidationError, match="Field required"):
            RunCatalog(manifests=(one,), **complete)


@pytest.mark.parametrize(
    ("openapi", "provenance"),
    [
        ({"document": WHERE}, Provenance.RUN),
        ({"document": {"valueFrom": {"contributionsRef": {"key": "k"}}}}, Provenance.RUN),
        ({"document": WHERE, "baseUrl": "https://pets.example"}, Provenance.STORE),
        ({"document": "openapi: 3.0.0"}, Provenance.STORE),
        ({"url": "https://pets.example"}, Provenance.STORE),
    ],
)
def test_a_document_that_a_run_chooses_chooses_the_server_of_its_operations(
    openapi: Json, provenance: Provenance
) -> None:
    tool = manifest("Tool", "pets", {"type": "openapi", "openapi": openapi})
    catalog = run_catalog(tool, agent("a", "pets"), provenance=Provenance.STORE)
    made = Tool.model_validate(http_tool("https://pets.example/all", "pets-all"))
    more = catalog.with_manifests([*catalog.manifests, made], generated_from={made.id: "Tool/default/pets"})
    assert [more.provenance_of(each) for each in more.manifests] == [provenance] * 3


def test_a_manifest_that_a_run_makes_has_the_provenance_of_what_it_is_made_of() -> None:
    catalog = run_catalog(agent("one"), manifest("MCPServer", "m", {"address": "http://h"}))
    made = Agent.model_validate(agent("made"))
    with pytest.raises(ValueError, match="Agent/default/made is new, and not derived from a manifest of the run"):
        catalog.with_manifests([*catalog.manifests, made])
    more = catalog.with_manifests([*catalog.manifests, made], generated_from={made.id: "MCPServer/default/m"})
    assert more.provenance_of(made) is Provenance.INLINE
    assert run_catalog().provenance_of(made) is Provenance.INLINE, "what no catalog has is nobody's"


@pytest.mark.parametrize("catalog", [Catalog(), run_catalog()])
def test_no_catalog_is_copied(catalog: Catalog) -> None:
    """A copy would keep the SHA-256 of the original."""
    with pytest.raises(TypeError, match="a catalog cannot be copied"):
        catalog.model_copy(update={"notices": ("x",)})
