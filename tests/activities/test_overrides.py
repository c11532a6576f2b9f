"""Overrides: headers of a query and of an agent for the models and servers that are used for them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from baton.resources.secret import Secret
from baton.testing import Reply
from tests.activities.test_inline_manifests import failure_of, loaded, model, working
from tests.harness.agent_server import AgentServer
from tests.harness.anthropic_server import AnthropicServer
from tests.harness.environment import KEY, Environment, Json, agent, call, line, team
from tests.harness.mcp_process import McpServerProcess
from tests.harness.remote_agents import a2a_agent, a2a_server, engine, engine_agent, said
from tests.harness.tool_server import ToolServer

TOKEN = "token-of-the-user-0123456789"
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "user"}, "stringData": {"token": TOKEN}}
OF_SECRET = {"valueFrom": {"secretKeyRef": {"name": "user", "key": "token"}}}
LABELS = {"matchLabels": {"tier": "gold"}}


def override(kind: str, labels: Json | None = None, /, **headers: object) -> Json:
    given = [{"name": name.replace("_", "-"), "value": value} for name, value in headers.items()]
    return {"resourceType": kind, "headers": given, **({"labelSelector": labels} if labels else {})}


def labelled(given: Json, **labels: str) -> Json:
    return {**given, "metadata": {**given["metadata"], "labels": labels}}


def noted(env: Environment) -> list[Json]:
    """The headers of the requests to the model, from now on."""
    found: list[Json] = []
    env.model.on_headers = lambda headers: found.append(_each_once(headers))
    return found


def _each_once(headers: Any) -> Json:
    assert len({*headers.keys()}) == len(headers.keys()), "a header was sent twice"
    return {**headers}


@pytest.fixture
def mcp(tmp_path: Path) -> Iterator[McpServerProcess]:
    with McpServerProcess("2025", tmp_path).running() as server:
        yield server


async def test_a_querys_headers_come_before_the_agents_and_those_before_the_models(env: Environment) -> None:
    seen = noted(env)
    of_model = [{"name": name, "value": "model"} for name in ("X-One", "X-Two", "X-Three")]
    one = agent("a", modelRef={"name": "gpt"}, overrides=[override("model", x_two="agent", X_Three="agent")])
    env.script(line("a", "Here."))
    gpt = model(env.model_url, headers=of_model)
    await env.status(await env.start_query([one, gpt], "agent/a", overrides=[override("model", X_THREE="query")]))
    assert [seen[0][f"x-{each}"] for each in ("one", "two", "three")] == ["model", "agent", "query"]


async def test_an_override_is_for_the_models_with_its_labels_and_for_no_other_type(env: Environment) -> None:
    seen = noted(env)
    one = agent("a", modelRef={"name": "gpt"}, overrides=[override("model", LABELS, X_Gold="1")])
    one["spec"]["overrides"].append(override("mcpserver", X_Tools="1"))
    env.script(line("a", "Here.", "Here."))
    for labels, expected in ({"tier": "gold"}, "1"), ({"tier": "tin"}, None):
        await env.status(await env.start_query([one, labelled(model(env.model_url), **labels)], "agent/a"))
        assert (seen[-1].get("x-gold"), seen[-1].get("x-tools")) == (expected, None)


async def test_headers_of_the_workers_agents_are_not_sent_to_a_model_that_a_run_brings(env: Environment) -> None:
    """A run may bring the model that sums up what agents of the worker have said."""
    seen = noted(env)
    mine = override("model", X_Gateway=OF_SECRET)
    agents = [agent(name, modelRef={"name": "gpt"}, overrides=[mine]) for name in ("a", "b")]
    evil = model(env.model_url, "evil")
    evil["spec"]["model"] = "evil"
    window = {"maxTokens": 1, "summarize": {"model": "evil", "after": 1}}
    pair = team("pair", "a", "b", strategy="sequential", contextWindow=window)
    async with working(env, SECRET, *agents, model(env.model_url), BATON_ALLOW_PRIVATE_HOSTS="1") as here:
        here.answer = lambda _: Reply(text="Here.")
        assert (await here.status(await here.start_query([evil, pair], "team/pair"))).phase == "Completed"
    asked = [each.body["model"] for each in env.model.requests]
    assert "evil" in asked
    assert [each.get("x-gateway") for each in seen] == [None if name == "evil" else TOKEN for name in asked]


async def test_values_of_secrets_config_maps_and_query_parameters_are_sent_and_secrets_not_stored(
    env: Environment,
) -> None:
    env.catalog.secrets.add(Secret.model_validate(SECRET))
    seen = noted(env)
    where = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "desk"}, "data": {"name": "north"}}
    asked = override(
        "model",
        authorization=OF_SECRET,
        X_Desk={"valueFrom": {"configMapKeyRef": {"name": "desk", "key": "name"}}},
        X_User={"valueFrom": {"queryParameterRef": {"name": "user"}}},
    )
    env.script(line("a", "Here."))
    given = [agent("a", modelRef={"name": "gpt"}), model(env.model_url), where]
    options: Json = {"overrides": [asked], "parameters": [{"name": "user", "value": "mia"}]}
    handle = await env.start_query(given, "agent/a", **options)
    assert (await env.status(handle)).phase == "Completed"
    assert (seen[0]["authorization"], seen[0]["x-desk"], seen[0]["x-user"]) == (TOKEN, "north", "mia")
    assert TOKEN not in str(await handle.fetch_history()) + str(env.rows())


async def test_two_runs_with_other_headers_do_not_get_each_others(env: Environment) -> None:
    seen = noted(env)
    env.script(line("a", "Here.", "Here."))
    for user in "mia", "tom":
        given = [agent("a", modelRef={"name": "gpt"}), model(env.model_url)]
        await env.status(await env.start_query(given, "agent/a", overrides=[override("model", X_User=user)]))
    assert [each["x-user"] for each in seen] == ["mia", "tom"]


@pytest.mark.full
async def test_an_mcp_server_gets_them_when_its_tools_are_listed_and_used(
    env: Environment, mcp: McpServerProcess
) -> None:
    one = agent("a", tools=[{"name": "test", "type": "mcp"}], overrides=[override("mcpserver", X_One="agent")])
    env.script(line("a", call("test-header", name="x-one"), call("test-header", name="x-two"), "Done."))
    given = [one, mcp.manifest(headers={"X-One": "server", "X-Two": "server"})]
    handle = await env.start_query(given, "agent/a", overrides=[override("mcpserver", X_Two="query")])
    status = await env.status(handle)
    assert [each.content for each in status.responses[0].messages if each.role == "tool"] == ["agent", "query"]


async def test_an_engine_and_an_a2a_server_get_them(env: Environment, tool_server: ToolServer) -> None:
    both = [override("executionengine", X_User="mia"), override("a2aserver", X_User="mia")]
    tool_server.answers(said("Yes."))
    handle = await env.start_query([engine_agent("o"), engine(tool_server)], "agent/o", overrides=both)
    assert (await env.status(handle)).message == "Yes."
    assert tool_server.seen[0].headers["x-user"] == "mia"
    agents = AgentServer()
    with agents.serving():
        handle = await env.start_query([a2a_agent("o"), a2a_server(agents)], "agent/o", overrides=both)
        assert (await env.status(handle)).phase == "Completed"
    assert {each.headers.get("x-user") for each in agents.seen} == {"mia"}


async def test_a_model_of_anthropic_gets_them(env: Environment) -> None:
    claude = AnthropicServer()
    with claude.serving():
        of_claude = model(claude.url, provider="anthropic", apiKey="sk-claude-0123456789")
        env.catalog = loaded(of_claude)
        async with working(env, of_claude, agent("a", modelRef={"name": "gpt"}), trust="all") as here:
            spec: Json = {"input": "Why?", "target": {"type": "agent", "name": "a"}}
            spec["overrides"] = [override("model", X_User="mia")]
            await here.status(await here.start("query", {"spec": spec}))
    assert claude.headers[0]["x-user"] == "mia"
    assert KEY not in str(claude.headers)


async def refused(env: Environment, spec: Json, *own: Json) -> str:
    async with working(env, *own) as here:
        given = {"spec": {"input": "Why?", "target": {"type": "agent", "name": "a"}, **spec}}
        kind, text = await failure_of(here, "query", given)
    assert kind in ("InvalidInput", "KeyMissing")
    assert env.model.requests == []
    return text


def annotated(given: Json, headers: str) -> Json:
    return {**given, "metadata": {**given["metadata"], "annotations": {"baton/allow-inline": headers}}}


async def test_a_run_sends_headers_to_a_model_of_the_worker_only_if_the_model_allows_them(env: Environment) -> None:
    own: list[Json] = [agent("a", modelRef={"name": "gpt"})]
    asked: dict[str, Any] = {"overrides": [override("model", X_User="admin")]}
    text = await refused(env, asked, *own, model(env.model_url))
    assert "may not send X-User to Model/default/gpt of the worker" in text
    assert "may not send X-User" in await refused(env, asked, *own, annotated(model(env.model_url), "X-Trace"))
    seen = noted(env)
    async with working(env, *own, annotated(model(env.model_url), "X-Trace, X-User")) as here:
        here.script(line("a", "Here."))
        spec = {"input": "Why?", "target": {"type": "agent", "name": "a"}, **asked}
        assert (await here.status(await here.start("query", {"spec": spec}))).message == "Here."
    assert seen[0]["x-user"] == "admin"


async def test_a_run_sends_no_secret_of_the_worker_in_a_header(env: Environment) -> None:
    own = agent("a", modelRef={"name": "gpt"}), annotated(model(env.model_url), "*"), SECRET
    text = await refused(env, {"overrides": [override("model", X_User=OF_SECRET)]}, *own)
    assert "Query/default/query: spec.overrides[0].headers[0].value" in text
