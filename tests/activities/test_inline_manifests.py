"""What inline manifests may do: a worker's Secrets and its own network are for its own manifests."""

import contextlib
import copy
import dataclasses
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from baton import worker
from baton.resources.documents import Document
from baton.resources.loader import Loaded, load_documents
from baton.starter.server.state_dir import StateDir
from tests.harness.environment import Environment, Json, agent, call, line, manifest
from tests.harness.manifests import prealpha
from tests.harness.remote_agents import said
from tests.harness.tool_server import Answer, ToolServer

KEY = "worker-key-0123456789"
OF_KEY = {"valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}}
HEADERS = [{"name": "X", "value": OF_KEY}]
TOOL_SCHEMA = {"type": "object", "properties": {}}
PRIVATE = {"BATON_ALLOW_PRIVATE_HOSTS": "1"}


def secret(hosts: str | None = None) -> Json:
    annotations = {"baton/allow-inline": hosts} if hosts else {}
    metadata = {"name": "keys", "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"k": KEY}}


def loaded(*manifests: Json) -> Loaded:
    return load_documents([Document("own.yaml", copy.deepcopy(each), {}) for each in manifests])


def model(url: object, name: str = "gpt", provider: str = "openai", **config: object) -> Json:
    config = {provider: {"baseUrl": url, **config}}
    return manifest("Model", name, {"type": "completions", "provider": provider, "model": "m", "config": config})


def http_tool(url: str, name: str = "look", **spec: object) -> Json:
    return manifest("Tool", name, {"type": "http", "inputSchema": TOOL_SCHEMA, "http": {"url": url, **spec}})


@contextlib.asynccontextmanager
async def working(
    env: Environment, *own: Json, trust: str = "no-secrets", **variables: str
) -> AsyncIterator[Environment]:
    """A worker with manifests of its own that trusts those of runs as it does by default."""
    here = dataclasses.replace(env, task_queue=uuid.uuid4().hex, catalog=loaded(*own), inline_manifests=trust)
    env.model._answer = lambda request: here.answer(request)
    async with worker.run_worker(env.client, here.catalog, {**here.worker_env, **variables}):
        yield here


async def failure_of(env: Environment, workflow: str, given: Json) -> tuple[str, str]:
    """The type and the text of the error with which a run fails."""
    with pytest.raises(WorkflowFailureError) as failed:
        await (await env.start(workflow, given)).result()
    cause: Any = failed.value.cause
    return cause.type, cause.message


async def asked(env: Environment, *brought: Json, name: str = "a") -> Any:
    return await env.turn_result(await env.start("agent", {"agent": name, "input": "Why?", "resources": [*brought]}))


USERS: dict[str, tuple[str, list[Json], str]] = {
    "a model's key": (
        "agent",
        [agent("a", modelRef={"name": "gpt"}), model("URL", apiKey=OF_KEY)],
        "Model/default/gpt",
    ),
    "a model's header": (
        "agent",
        [agent("a", modelRef={"name": "gpt"}), model("URL", headers=HEADERS)],
        "Model/default/gpt: spec.config.openai.headers[0].value",
    ),
    "a model's property": (
        "agent",
        [agent("a", modelRef={"name": "gpt"}), model("URL", properties={"user": OF_KEY})],
        "spec.config.openai.properties.user",
    ),
    "a model's address": ("agent", [agent("a", modelRef={"name": "gpt"}), model(OF_KEY)], "baseUrl"),
    "a model of Anthropic": (
        "agent",
        [agent("a", modelRef={"name": "gpt"}), model("URL", provider="anthropic", apiKey=OF_KEY)],
        "spec.config.anthropic.apiKey",
    ),
    "a model of Bedrock": (
        "agent",
        [agent("a", modelRef={"name": "gpt"}), model("URL", provider="bedrock", apiKey=OF_KEY)],
        "spec.config.bedrock.apiKey",
    ),
    "an agent's prompt": (
        "agent",
        [agent("a", prompt="Say {{.k}}.", parameters=[{"name": "k", **OF_KEY}])],
        "Agent/default/a: spec.parameters[0]",
    ),
    "an engine's header": (
        "agent",
        [
            agent("a", executionEngine={"name": "e"}),
            prealpha("ExecutionEngine", "e", {"type": "x", "address": "URL", "headers": HEADERS}),
        ],
        "ExecutionEngine/default/e: spec.headers[0].value",
    ),
    "an A2A server's header": (
        "agent",
        [
            {**agent("a", executionEngine={"name": "a2a"})}
            | {"metadata": {"name": "a", "annotations": {"a2a.server/name": "far"}}},
            prealpha("A2AServer", "far", {"address": "URL", "headers": HEADERS}),
        ],
        "A2AServer/default/far: spec.headers[0].value",
    ),
    "an MCP server's header": (
        "agent",
        [
            agent("a", "m"),
            manifest("MCPServer", "m", {"address": {"value": "URL"}, "headers": HEADERS}),
        ],
        "MCPServer/default/m: spec.headers[0].value",
    ),
    "an OpenAPI document's header": (
        "agent",
        [
            agent("a", "o"),
            manifest("Tool", "o", {"type": "openapi", "openapi": {"url": "URL", "headers": HEADERS}}),
        ],
        "Tool/default/o: spec.openapi.headers[0].value",
    ),
}


@pytest.mark.parametrize("user", USERS)
async def test_a_brought_manifest_of_no_kind_may_use_a_secret_of_the_worker(
    env: Environment, tool_server: ToolServer, user: str
) -> None:
    workflow, brought, named = USERS[user]
    given = at(brought, tool_server.url)
    async with working(env, secret(), **PRIVATE) as here:
        kind, text = await failure_of(here, workflow, {"agent": "a", "input": "Why?", "resources": given})
    assert kind == "KeyMissing"
    assert named in text
    assert "baton/allow-inline" in text
    assert (tool_server.seen, env.model.requests) == ([], [])


def at(manifests: list[Json], url: str) -> list[Json]:
    """The manifests with the address of a server in place of ``URL``."""
    replaced: list[Json] = json.loads(json.dumps(manifests).replace('"URL"', json.dumps(url)))
    return replaced


async def test_a_brought_tools_header_is_not_filled_from_a_secret_of_the_worker(
    env: Environment, tool_server: ToolServer
) -> None:
    tool = http_tool(tool_server.url, headers=HEADERS)
    async with working(env, secret(), **PRIVATE) as here:
        kind, text = await failure_of(here, "tool", {"tool": "look", "input": "{}", "resources": [tool]})
    assert kind == "KeyMissing"
    assert "Tool/default/look: spec.http.headers[0].value" in text
    assert tool_server.seen == []


async def test_a_brought_querys_parameter_gives_no_secret_to_an_agent_of_the_worker(env: Environment) -> None:
    parameters = [{"name": "k", "valueFrom": {"queryParameterRef": {"name": "k"}}}]
    async with working(env, secret(), agent("a", prompt="Say {{.k}}.", parameters=parameters)) as here:
        spec = {"input": "Why?", "target": {"type": "agent", "name": "a"}, "parameters": [{"name": "k", **OF_KEY}]}
        kind, text = await failure_of(here, "query", {"spec": spec})
    assert kind == "KeyMissing"
    assert "Query/default/query: spec.parameters[0]" in text
    assert env.model.requests == []


async def test_the_workers_own_manifests_use_its_secrets_also_if_a_run_brings_them_unchanged(
    env: Environment, tool_server: ToolServer
) -> None:
    own = [
        model(env.model_url, apiKey=OF_KEY),
        agent("a", "look", modelRef={"name": "gpt"}),
        http_tool(tool_server.url, headers=HEADERS),
    ]
    async with working(env, secret(), *own) as here:
        for brought in ([], own):
            here.script(line("a", call("look"), "done"))
            assert (await asked(here, *brought)).message == "done"
    assert {each.headers["x"] for each in tool_server.seen} == {KEY}
    assert len(env.model.requests) == 4


async def test_a_brought_model_that_is_named_like_one_of_the_worker_does_not_have_its_key(
    env: Environment, tool_server: ToolServer
) -> None:
    own = model("https://models.example.com", apiKey=OF_KEY), agent("a", modelRef={"name": "gpt"})
    async with working(env, secret(), *own, **PRIVATE) as here:
        tool_server.answers(Answer(status=400))
        given = {"agent": "a", "input": "Why?", "resources": [model(tool_server.url)]}
        assert (await failure_of(here, "agent", given))[0] == "ModelRejected"
        given["resources"] = [model(tool_server.url, apiKey=OF_KEY)]
        assert (await failure_of(here, "agent", given))[0] == "KeyMissing"
    assert len(tool_server.seen) == 1
    assert KEY not in str(tool_server.seen)


async def test_a_brought_config_map_does_not_lead_a_key_of_the_worker_elsewhere(
    env: Environment, tool_server: ToolServer
) -> None:
    def address(url: str) -> Json:
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "where"}, "data": {"url": url}}

    url = {"valueFrom": {"configMapKeyRef": {"name": "where", "key": "url"}}}
    own = model(url, apiKey=OF_KEY), agent("a", modelRef={"name": "gpt"}), address("https://models.example.com")
    async with working(env, secret(), *own, **PRIVATE) as here:
        given = {"agent": "a", "input": "Why?", "resources": [address(tool_server.url)]}
        kind, text = await failure_of(here, "agent", given)
    assert (kind, "Model/default/gpt" in text) == ("KeyMissing", True)
    assert tool_server.seen == []


async def test_a_secret_in_the_prompt_of_an_agent_of_the_worker_is_not_told_to_a_brought_model(
    env: Environment, tool_server: ToolServer
) -> None:
    own = agent("a", prompt="Say {{.k}}.", parameters=[{"name": "k", **OF_KEY}])
    async with working(env, secret(), own, **PRIVATE) as here:
        given = {"agent": "a", "input": "Why?", "resources": [model(tool_server.url, "default")]}
        kind, text = await failure_of(here, "agent", given)
    assert (kind, "Agent/default/a" in text) == ("KeyMissing", True)
    assert tool_server.seen == []


async def test_a_brought_engine_does_not_get_the_key_of_the_workers_model(
    env: Environment, tool_server: ToolServer
) -> None:
    tool_server.answers(said("done"))
    engine = prealpha("ExecutionEngine", "e", {"type": "x", "address": tool_server.url, "sendKeys": True})
    asking = agent("a", executionEngine={"name": "e"}, modelRef={"name": "gpt"})
    async with working(env, secret(), model("https://models.example.com", apiKey=OF_KEY), **PRIVATE) as here:
        assert (await asked(here, asking, engine)).message == "done"
    (request,) = tool_server.seen
    assert "models.example.com" in request.body
    assert KEY not in request.body


OPENAPI = """
openapi: 3.0.0
info: {title: t, version: "1"}
servers: [{url: URL}]
paths: {/x: {get: {operationId: read, responses: {}}}}
"""


async def test_a_tool_that_is_made_of_a_brought_document_may_not_use_a_secret_of_the_worker(
    env: Environment, tool_server: ToolServer
) -> None:
    value = {"valueFrom": {"configMapKeyRef": {"name": "doc", "key": "d"}}}
    document = {"d": OPENAPI.replace("URL", tool_server.url)}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "doc"}, "data": document}
    spec = {"type": "openapi", "openapi": {"document": value, "headers": HEADERS}}
    async with working(env, secret(), **PRIVATE) as here:
        here.script(line("a", call("o-read"), "done"))
        turn = await asked(here, agent("a", "o"), manifest("Tool", "o", spec), config)
    assert "KeyMissing" in str(turn) or "may not use the Secret" in str(env.rows())
    assert tool_server.seen == []


@pytest.mark.parametrize(("hosts", "allowed"), [("127.0.0.1", True), ("a.b, 127.*", True), ("example.com", False)])
async def test_a_secret_that_says_so_may_be_sent_to_its_hosts_by_a_brought_manifest(
    env: Environment, tool_server: ToolServer, hosts: str, allowed: bool
) -> None:
    brought = http_tool(tool_server.url, headers=HEADERS)
    given = {"tool": "look", "input": "{}", "resources": [brought]}
    async with working(env, secret(hosts), **PRIVATE) as here:
        if allowed:
            await (await here.start("tool", given)).result()
        else:
            kind, text = await failure_of(here, "tool", given)
            assert (kind, f"allows {hosts}, not 127.0.0.1" in text) == ("KeyMissing", True)
    assert [each.headers["x"] for each in tool_server.seen] == [KEY] * allowed


async def test_a_secret_with_hosts_is_not_sent_to_an_address_that_an_argument_chooses(env: Environment) -> None:
    brought = http_tool("http://{host}/", headers=HEADERS)
    brought["spec"]["inputSchema"] = {"type": "object", "properties": {"host": {"type": "string"}}}
    given = {"tool": "look", "input": '{"host": "127.0.0.1"}', "resources": [brought]}
    async with working(env, secret("*"), **PRIVATE) as here:
        kind, text = await failure_of(here, "tool", given)
    assert (kind, "an address without a fixed host" in text) == ("KeyMissing", True)


GUARDED: dict[str, list[Json]] = {
    "a model": [agent("a", modelRef={"name": "gpt"}), model("URL")],
    "a model of Anthropic": [agent("a", modelRef={"name": "gpt"}), model("URL", provider="anthropic", apiKey="k" * 9)],
    "an engine": [
        agent("a", executionEngine={"name": "e"}),
        prealpha("ExecutionEngine", "e", {"type": "x", "address": "URL"}),
    ],
    "an A2A server": [
        {**agent("a", executionEngine={"name": "a2a"})}
        | {"metadata": {"name": "a", "annotations": {"a2a.server/name": "far"}}},
        prealpha("A2AServer", "far", {"address": "URL"}),
    ],
    "an MCP server": [agent("a", "m"), manifest("MCPServer", "m", {"address": {"value": "URL"}})],
    "an OpenAPI document": [agent("a", "o"), manifest("Tool", "o", {"type": "openapi", "openapi": {"url": "URL"}})],
}


@pytest.mark.parametrize("kind", [*GUARDED])
async def test_a_brought_manifest_of_no_kind_leads_into_the_workers_own_network(
    env: Environment, tool_server: ToolServer, kind: str
) -> None:
    given = at(GUARDED[kind], tool_server.url)
    for each in given:  # a literal key is a Secret, which no run may bring
        each["spec"].get("config", {}).get("anthropic", {}).pop("apiKey", None)
    async with working(env) as here:
        _, text = await failure_of(here, "agent", {"agent": "a", "input": "Why?", "resources": given})
    assert "is in the worker's own network" in text
    assert tool_server.seen == []


async def test_a_brought_tool_leads_into_the_workers_own_network_only_where_the_worker_allows_it(
    env: Environment, tool_server: ToolServer
) -> None:
    given = {"tool": "look", "input": "{}", "resources": [http_tool(tool_server.url)]}
    async with working(env) as here:
        _, text = await failure_of(here, "tool", given)
    assert ("BATON_ALLOW_PRIVATE_HOSTS" in text, tool_server.seen) == (True, [])
    async with working(env, **PRIVATE) as here:
        await (await here.start("tool", given)).result()
    assert len(tool_server.seen) == 1


async def test_a_worker_may_take_no_manifests_of_runs(env: Environment) -> None:
    async with working(env, agent("a"), trust="none") as here:
        here.script(line("a", "done"))
        assert (await asked(here, agent("a"))).message == "done"
        spec = {"input": "Why?", "target": {"type": "agent", "name": "a"}}
        assert (await here.status(await here.start("query", {"spec": spec}))).phase == "Completed"
        given = {"agent": "b", "input": "Why?", "resources": [agent("b")]}
        kind, text = await failure_of(here, "agent", given)
    assert (kind, "Agent/default/b" in text, "BATON_INLINE_MANIFESTS" in text) == ("InvalidInput", True, True)


async def test_what_was_noted_on_the_workers_machine_is_trusted_as_its_own(
    env: Environment, tool_server: ToolServer
) -> None:
    brought = [agent("a", "look"), http_tool(tool_server.url, headers=HEADERS)]
    catalog = loaded(*brought).catalog
    StateDir(env.folder).write_sources(catalog.sha, [])
    for trust in ("no-secrets", "none"):
        async with working(env, secret(), trust=trust) as here:
            here.script(line("a", call("look"), "done"))
            assert (await asked(here, *brought)).message == "done"
    assert [each.headers["x"] for each in tool_server.seen] == [KEY, KEY]


async def test_a_run_keeps_what_it_may_use_when_the_workers_manifests_change(
    env: Environment, tool_server: ToolServer
) -> None:
    tool_server.answers(Answer(status=503), Answer())
    tool = http_tool(tool_server.url, headers=HEADERS)
    here = dataclasses.replace(env, task_queue=uuid.uuid4().hex, inline_manifests="no-secrets")
    env.model._answer = lambda request: here.answer(request)
    here.script(line("a", call("look"), "done"))
    async with worker.run_worker(env.client, loaded(secret(), tool, agent("a", "look")), here.worker_env):
        handle = await here.start("agent", {"agent": "a", "input": "Why?"})
        await here.wait_for_calls(1)
    async with worker.run_worker(env.client, loaded(secret()), here.worker_env):
        assert (await here.turn_result(handle)).message == "done"
    assert {each.headers["x"] for each in tool_server.seen} == {KEY}


OF_ENVIRONMENT = ["OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "AZURE_OPENAI_AD_TOKEN", "ANTHROPIC_AUTH_TOKEN"]
OF_ENVIRONMENT += ["OPENAI_ADMIN_KEY", "OPENAI_WEBHOOK_SECRET", "AZURE_OPENAI_API_KEY", "ANTHROPIC_PROFILE"]


@pytest.mark.parametrize("provider", ["openai", "azure", "anthropic"])
async def test_a_brought_model_gets_nothing_that_a_library_finds_in_the_workers_environment(
    env: Environment, tool_server: ToolServer, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in OF_ENVIRONMENT:
        monkeypatch.setenv(name, "of-the-worker")
    for name in ("OPENAI_CUSTOM_HEADERS", "ANTHROPIC_CUSTOM_HEADERS"):
        monkeypatch.setenv(name, "x-gateway: of-the-worker\nX-Other:of-the-worker")
    tool_server.answers(Answer("no", 400))
    config = {"apiVersion": "2024-10-21"} if provider == "azure" else {}
    brought = [
        agent("a", modelRef={"name": "gpt"}),
        model(tool_server.url, provider=provider, **config),
    ]
    async with working(env, **PRIVATE) as here:
        await failure_of(here, "agent", {"agent": "a", "input": "Why?", "resources": brought})
    assert tool_server.seen
    assert "of-the-worker" not in repr([each.headers for each in tool_server.seen])
