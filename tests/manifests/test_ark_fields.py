"""Each field in the table of docs/ark.md is what the table says: it runs, is ignored, or is rejected."""

import re
from typing import Any

import pytest

from baton.resources.loader import Loaded
from baton.resources.problems import ManifestError
from baton.resources.query import Query
from tests.harness.environment import Json, agent, manifest, team
from tests.harness.manifests import Writer, prealpha, query
from tests.harness.processes import ROOT

TARGET = {"type": "agent", "name": "one"}
ASKED = query(target=TARGET)
KEY = {"valueFrom": {"secretKeyRef": {"name": "safe", "key": "k"}}}
HOST = {"value": "https://host.example"}
HEADERS = [{"name": "X-Team", "value": {"value": "a"}}]
SAFE = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "safe"}, "stringData": {"k": "v-0123456789"}}


def asked(**spec: Any) -> list[Json]:
    """A query of an agent, with more fields."""
    return [query(**{"target": TARGET, **spec}), agent("one")]


def of_team(strategy: str, **spec: Any) -> list[Json]:
    """A team of two agents, which a query asks, and an agent that can select."""
    given = team("pair", "one", "two", strategy=strategy, **{"maxTurns": 4, **spec})
    return [query(target={"type": "team", "name": "pair"}), given, agent("one"), agent("two"), agent("chair")]


def of_tool(spec: Json, **of_agent: Any) -> list[Json]:
    """An agent with a tool."""
    tool = {"name": "t", "type": spec["type"], **of_agent}
    return [
        ASKED,
        agent("one", tools=[tool]),
        manifest("Tool", "t", spec),
        agent("other"),
        team("pair", "other", strategy="sequential"),
    ]


def of_model(config: Json, provider: str = "azure", **spec: Any) -> list[Json]:
    """An agent with a model."""
    given = {"provider": provider, "model": "m", "config": {provider: config}, **spec}
    return [ASKED, agent("one", modelRef={"name": "m"}), manifest("Model", "m", given), SAFE]


def of_server(**spec: Any) -> list[Json]:
    """An agent with the tools of an MCPServer."""
    server = manifest("MCPServer", "s", {"address": HOST, **spec})
    return [ASKED, agent("one", tools=[{"name": "s", "type": "mcp"}]), server, SAFE]


def of_a2a(**spec: Any) -> list[Json]:
    """An agent of an A2AServer."""
    far = agent("one", executionEngine={"name": "a2a"})
    far["metadata"]["annotations"] = {"ark.mckinsey.com/a2a-server-name": "far"}
    return [ASKED, far, prealpha("A2AServer", "far", {"address": HOST, **spec})]


def config(**spec: Any) -> list[Json]:
    """The defaults of all queries."""
    return [ASKED, agent("one"), manifest("ArkConfig", "default", spec)]


HTTP = {"type": "http", "http": {"url": "https://host.example"}}
ENGINE = prealpha("ExecutionEngine", "engine", {"type": "langchain", "address": HOST})
MEMORY = manifest("Memory", "m", {"address": HOST})
SELECTOR = {
    "agent": "chair",
    "selectorPrompt": "Who of {{.Roles}}?",
    "enableTerminateTool": True,
    "terminatePrompt": "?",
}
AZURE = {"baseUrl": HOST}
TOKEN = {"tokenSecretRef": {"name": "safe", "accessTokenKey": "k"}}
REFRESHED = {"tokenSecretRef": {"name": "safe", "accessTokenKey": "k", "refreshTokenKey": "r"}}
OVERRIDES = [{"resourceType": "model", "headers": HEADERS, "labelSelector": {"matchLabels": {"a": "b"}}}]
EDGES = {"edges": [{"from": "one", "to": "two"}]}
EXAMPLES: dict[str, list[Json]] = {
    "Query.targets": [query(targets=[TARGET]), agent("one")],
    "Query.target": asked(),
    "Query.selector": [
        query(selector={"matchLabels": {"a": "b"}}),
        agent("one") | {"metadata": {"name": "one", "labels": {"a": "b"}}},
    ],
    "Query.type": asked(type="user"),
    "Query.type: messages": asked(type="messages", input=[{"role": "user", "content": "Why?"}]),
    "Query.memory": [*asked(memory={"name": "m"}), MEMORY],
    "Query.sessionId": asked(sessionId="s"),
    "Query.conversationId": asked(conversationId="c"),
    "Query.serviceAccount": [
        *asked(serviceAccount="clerk"),
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "r"}, "rules": []},
    ],
    "Query.ttl": asked(ttl="720h"),
    "Query.timeout": asked(timeout="5m"),
    "Query.cancel": asked(cancel=True),
    "Query.parameters": asked(parameters=[{"name": "p", "value": "v"}]),
    "Query.overrides": asked(overrides=OVERRIDES),
    "Query.evaluators": asked(evaluators=[{"name": "e"}]),
    "Team.loops": of_team("sequential", loops=True),
    "Team.maxTurns": of_team("round-robin"),
    "Team.selector.agent": of_team("selector", selector=SELECTOR),
    "Team.selector.model": of_team("selector", selector={"model": "default"}),
    "Team.selector.selectorPrompt": of_team("selector", selector=SELECTOR),
    "Team.selector.enableTerminateTool": of_team("selector", selector=SELECTOR),
    "Team.selector.terminatePrompt": of_team("selector", selector=SELECTOR),
    "Team.strategy: round-robin": of_team("round-robin"),
    "Team.strategy: graph": of_team("graph", graph=EDGES),
    "Agent.tools.approval": of_tool(HTTP, approval={"required": True, "timeout": "5m", "onTimeout": "reject"}),
    "Agent.tools.partial": of_tool(
        {**HTTP, "inputSchema": {"type": "object", "properties": {"a": {"type": "string"}}}},
        partial={"name": "t", "parameters": [{"name": "a", "value": "b"}]},
    ),
    "Agent.overrides": [ASKED, agent("one", overrides=OVERRIDES)],
    "Agent.executionEngine": [ASKED, agent("one", executionEngine={"name": "engine"}), ENGINE],
    "Tool.approval.argumentMatches": of_tool(
        {**HTTP, "approval": {"argumentMatches": [{"argument": "a", "pattern": "^x"}]}}
    ),
    "Tool.annotations": of_tool({**HTTP, "annotations": {"readOnlyHint": True, "title": "T"}}),
    "Tool.agent": of_tool({"type": "agent", "agent": {"name": "other"}}),
    "Tool.team": of_tool({"type": "team", "team": {"name": "pair"}}),
    "Tool.builtin": [ASKED, agent("one"), manifest("Tool", "noop", {"type": "builtin", "builtin": {"name": "noop"}})],
    "Model.provider": of_model({**AZURE, "apiKey": KEY}),
    "Model.type: openai": [
        ASKED,
        agent("one", modelRef={"name": "m"}),
        manifest("Model", "m", {"type": "openai", "model": "m", "config": {"openai": AZURE}}),
    ],
    "Model.pollInterval": of_model({**AZURE, "apiKey": KEY}, pollInterval="1m"),
    "Model.config.azure.auth.apiKey": of_model({**AZURE, "auth": {"apiKey": KEY}}),
    "Model.config.azure.auth.managedIdentity": of_model({**AZURE, "auth": {"managedIdentity": {"clientId": "c"}}}),
    "Model.config.azure.auth.workloadIdentity": of_model({**AZURE, "auth": {"workloadIdentity": {"tenantId": "t"}}}),
    "Model.config.bedrock": of_model({"region": {"value": "r"}, "maxTokens": 9, "temperature": "0.2"}, "bedrock"),
    "Model.config.anthropic": of_model({**AZURE, "apiKey": KEY, "version": {"value": "2023-06-01"}}, "anthropic"),
    "MCPServer.timeout": of_server(timeout="30s"),
    "MCPServer.toolCallTimeout": of_server(toolCallTimeout="10m"),
    "MCPServer.authorization.tokenSecretRef": of_server(authorization=TOKEN),
    "MCPServer.authorization.tokenSecretRef.refreshTokenKey": of_server(authorization=REFRESHED),
    "MCPServer.pollInterval": of_server(pollInterval="1m"),
    "A2AServer.timeout": of_a2a(timeout="5m"),
    "A2AServer.pollInterval": of_a2a(pollInterval="1m"),
    "ExecutionEngine.address": [ASKED, agent("one", executionEngine={"name": "engine"}), ENGINE],
    "Memory.address": [*asked(memory={"name": "m"}), MEMORY],
    "valueFrom.queryParameterRef": [
        *asked(parameters=[{"name": "p", "value": "v"}])[:1],
        agent("one", parameters=[{"name": "a", "valueFrom": {"queryParameterRef": {"name": "p"}}}]),
    ],
    "valueFrom.serviceRef": [
        *asked(memory={"name": "m"}),
        manifest("Memory", "m", {"address": {"valueFrom": {"serviceRef": {"name": "s"}}}}),
    ],
    "ArkConfig.queryTTL": config(queryTTL="24h"),
    "ArkConfig.defaultMemory": config(defaultMemory={"name": "m"}),
    "ArkConfig.evaluationTTL": config(evaluationTTL="24h"),
}
ROWS = re.findall(r"^\| `([^`]+)` \| (runs|ignored|rejected) \|", (ROOT / "docs" / "ark.md").read_text(), re.MULTILINE)


def test_every_row_of_the_table_has_an_example() -> None:
    assert sorted(field for field, _ in ROWS) == sorted(EXAMPLES)


@pytest.mark.parametrize(("field", "state"), ROWS, ids=[field for field, _ in ROWS])
def test_a_field_of_ark_is_what_the_table_says(write: Writer, field: str, state: str) -> None:
    name = field.partition(":")[0].rpartition(".")[2]
    try:
        loaded = write.load(*EXAMPLES[field])
        assert loaded.unresolved() == []
        catalog = loaded.needed_by(next(each for each in loaded.catalog.manifests if isinstance(each, Query)))
    except ManifestError as error:
        assert (state, name in str(error)) == ("rejected", True)
        return
    assert state == ("ignored" if told(loaded, name) else "runs")
    assert f'"{name}"' in (catalog if name != "builtin" else loaded.catalog).canonical


def told(loaded: Loaded, name: str) -> bool:
    """Whether users are told that a field is ignored."""
    return any(each.field.endswith(name) and "is ignored" in each.text for each in loaded.notices())


def test_what_ark_notes_of_a_run_is_skipped(write: Writer) -> None:
    kinds = ("A2ATask", "ToolApprovalRequest", "ToolInteraction")
    loaded = write.load(*asked(), *(manifest(kind, "x", {"any": 1}) for kind in kinds))
    assert len(loaded.ignored) == len(kinds)
    assert len(loaded.catalog.manifests) == 2


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            of_model({**AZURE, "apiKey": KEY, "auth": {"apiKey": KEY}}),
            "spec.config.azure.apiKey: can't be combined with auth",
        ),
        (of_model({**AZURE, "auth": {}}), "needs exactly one of apiKey, managedIdentity, workloadIdentity"),
        (
            of_tool({"type": "http", "builtin": {"name": "noop"}, **HTTP}),
            "spec.builtin: can't be used for a tool of type",
        ),
        (
            [manifest("Tool", "noop", {"type": "builtin", "builtin": {"name": "other"}})],
            "spec.builtin.name: must be 'noop'",
        ),
        (asked(type="messages", input="Why?"), "Query/default/q: spec.input: must be a list of messages"),
    ],
    ids=["two keys", "no identity", "type", "another name", "messages"],
)
def test_a_wrong_use_of_todays_fields_is_refused_by_the_field(write: Writer, given: list[Json], says: str) -> None:
    assert says in str(write.refusal(*given))
