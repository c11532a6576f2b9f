"""Errors of each kind of manifest, with file, resource and field."""

import pytest

from baton.resources.agent import AgentSpec
from tests.harness.environment import Json, agent, manifest, team
from tests.harness.manifests import Writer, model, prealpha, query

THERE = {"value": "http://host"}


def tool(kind: str, **spec: object) -> Json:
    return manifest("Tool", "t", {"type": kind, **spec})


def http(**request: object) -> Json:
    return tool("http", http={"url": "https://host", **request})


def ask(**spec: object) -> Json:
    return query(**{"targets": [{"type": "agent", "name": "a"}], **spec})


def given(**parameter: object) -> Json:
    return ask(parameters=[{"name": "p", **parameter}])


def azure(**config: object) -> Json:
    return manifest("Model", "m", {"type": "azure", "model": "gpt", "config": {"azure": config}})


def set_model(provider: str, config: Json | None = None, **settings: object) -> Json:
    return manifest("Model", "m", {"type": provider, "model": "m", "config": {provider: config or {}}, **settings})


def spec(kind: str, **given: object) -> Json:
    return manifest(kind, kind.lower(), given)


def annotated(name: str, annotations: Json) -> Json:
    made = agent(name)
    return {**made, "metadata": {**made["metadata"], "annotations": annotations}}


def graph(*edges: Json) -> Json:
    return team("t", "a", "b", strategy="graph", graph={"edges": [*edges]})


AB = {"from": "a", "to": "b"}
BOTH = {"secretKeyRef": {"name": "s", "key": "k"}, "configMapKeyRef": {"name": "c", "key": "k"}}
SELECTED = {"matchLabels": {"a": "b"}}

WRONG: list[tuple[Json, str]] = [
    (ask(input=None), "Query/default/q: spec.input: is empty"),
    (ask(targets=[{"name": "a"}]), "Query/default/q: spec.targets[0].type: is missing"),
    (ask(targets=[{"type": "agent", "name": ""}]), "Query/default/q: spec.targets[0].name: is not a name"),
    (ask(target={"type": "agent", "name": "a"}), "Query/default/q: spec.target: can't be combined with targets"),
    (query(target={"type": "evaluator", "name": "a"}), "Query/default/q: spec.target.type: 'evaluator' is unknown"),
    (ask(sessionId=""), "Query/default/q: spec.sessionId: is not an id"),
    (ask(serviceAccount=""), "Query/default/q: spec.serviceAccount.name: is not a name"),
    (ask(memory={}), "Query/default/q: spec.memory.name: is missing"),
    (ask(ttl="forever"), "Query/default/q: spec.ttl: is not a duration"),
    (ask(budget={}), "Query/default/q: spec.budget: has no limit: set tokens, cost, modelCalls, toolCalls or"),
    (ask(budget={"tokens": 0}), "Query/default/q: spec.budget.tokens: "),
    (ask(budget={"duration": "99999999999h"}), "Query/default/q: spec.budget.duration: is not a usable duration"),
    (ask(timeout="-5m"), "Query/default/q: spec.timeout: is not a duration"),
    (ask(cancel="yes"), "Query/default/q: spec.cancel: is text, must be true or false"),
    (ask(evaluators=[{}]), "Query/default/q: spec.evaluators[0].name: is missing"),
    (
        ask(evaluators=[{"name": "e"}], evaluatorSelector=SELECTED),
        "Query/default/q: spec.evaluatorSelector: can't be combined with evaluators",
    ),
    (ask(evaluatorSelector={}), "Query/default/q: spec.evaluatorSelector: needs matchLabels or matchExpressions"),
    (given(), "Query/default/q: spec.parameters[0]: needs either value or valueFrom"),
    (given(value=""), "Query/default/q: spec.parameters[0].value: is empty"),
    (given(value="v", valueFrom=BOTH), "Query/default/q: spec.parameters[0].valueFrom: needs exactly one of"),
    (given(valueFrom={}), "Query/default/q: spec.parameters[0].valueFrom: needs exactly one of"),
    (
        given(valueFrom={"configMapKeyRef": {"name": "c"}}),
        "spec.parameters[0].valueFrom.configMapKeyRef.key: is missin",
    ),
    (ask(parameters=[{"value": "v"}]), "Query/default/q: spec.parameters[0].name: is missing"),
    (ask(parameters=[{"name": "", "value": "v"}]), "Query/default/q: spec.parameters[0].name: is empty"),
    (ask(input="{{.b}}", parameters=[{"name": "a", "value": "v"}]), "Query/default/q: spec.input: unknown name"),
    (agent("a", tools=[{"type": "custom"}]), "Agent/default/a: spec.tools[0].name: is missing"),
    (
        agent("a", tools=[{"type": "builtin", "name": "x"}]),
        "Agent/default/a: spec.tools[0].name: 'x' is not a built-in",
    ),
    (agent("a", tools=[{"type": "rpc", "name": "x"}]), "Agent/default/a: spec.tools[0].type: 'rpc' is unknown"),
    (agent("a", tools={}), "Agent/default/a: spec.tools: is a mapping, must be a list"),
    (agent("a", modelRef={}), "Agent/default/a: spec.modelRef.name: is missing"),
    (agent("a", outputSchema="text"), "Agent/default/a: spec.outputSchema: is text, must be a mapping"),
    (agent("a", outputSchema={"type": "thing"}), "Agent/default/a: spec.outputSchema: is not a JSON Schema: $.type"),
    (agent("a", executionEngine={}), "Agent/default/a: spec.executionEngine.name: is missing"),
    (
        agent("a", executionEngine={"name": "a2a"}),
        "Agent/default/a: metadata.annotations: is missing: the annotation 'a2a.server/name' names the agent's A2AS",
    ),
    (
        annotated("a", {"a2a.server/address": "ftp://x"}),
        "Agent/default/a: metadata.annotations.a2a.server/address: is not an address",
    ),
    (team("t", "a", strategy=""), "Team/default/t: spec.strategy: '' is unknown"),
    (spec("Team", members=[{"name": "a"}]), "Team/default/team: spec.strategy: is missing"),
    (spec("Team", strategy="sequential", members=[{"type": "agent"}]), "spec.members[0].name: is missing"),
    (
        spec("Team", strategy="sequential", members=[{"type": "tool", "name": "x"}]),
        "Team/default/team: spec.members[0].type: 'tool' is unknown",
    ),
    (team("t", "t", strategy="sequential"), "Team/default/t: spec.members[0].name: the team contains itself (t → t)"),
    (graph({"from": "x", "to": "b"}), "Team/default/t: spec.graph.edges[0].from: 'x' is not a member"),
    (graph({"from": "a"}), "Team/default/t: spec.graph.edges[0].to: is missing"),
    (graph(AB, AB), "Team/default/t: spec.graph.edges[1]: member 'a' has more than one outgoing edge"),
    (spec("Model", type="openai", config={"openai": {}}), "Model/default/model: spec.model: is missing"),
    (spec("Model", type="openai", model={}, config={"openai": {}}), "spec.model: needs either value or valueFrom"),
    (
        spec("Model", type="azure", model="m", config={"openai": {}}),
        "Model/default/model: spec.config.azure: is missing",
    ),
    (azure(apiKey="k" * 20), "Model/default/m: spec.config.azure.baseUrl: is missing"),
    (
        azure(baseUrl="https://h", apiKey={"value": "k", "valueFrom": BOTH}),
        "spec.config.azure.apiKey.valueFrom: needs exa",
    ),
    (model(baseUrl="ftp://host"), "Model/default/m: spec.config.openai.baseUrl: is not an address"),
    (
        spec("Model", type="completions", model="m", config={"openai": {}}),
        "Model/default/model: spec.provider: is missing",
    ),
    (
        spec("Model", type="openai", provider="openai", model="m", config={"openai": {}}),
        "Model/default/model: spec.provider: can't be used with type 'openai'",
    ),
    (
        spec("Model", type="bedrock", model="m", config={"bedrock": {"maxTokens": 0}}),
        "spec.config.bedrock.maxTokens: is 0, must be 1 or more",
    ),
    (
        spec("Model", type="bedrock", model="m", config={"bedrock": {"temperature": "1.5"}}),
        "spec.config.bedrock.temperature: is not a number from 0 to 1",
    ),
    (
        set_model("anthropic", seed=7),
        "Model/default/m: spec.seed: can't be sent to a model of the provider 'anthropic'",
    ),
    (set_model("bedrock", reasoningEffort="low"), "Model/default/m: spec.reasoningEffort: can't be sent to a model of"),
    (set_model("bedrock", temperature=1.5), "Model/default/m: spec.temperature: is 1.5; for the provider 'bedrock'"),
    (
        set_model("anthropic", reasoningEffort="none"),
        "spec.reasoningEffort: is 'none'; the provider 'anthropic' has: l",
    ),
    (set_model("openai", temperature="warm"), "Model/default/m: spec.temperature: is text, must be a number"),
    (
        set_model("openai", {"properties": {"max_completion_tokens": 9}}, maxTokens=7),
        "Model/default/m: spec.config.openai: 'max_completion_tokens' can't be combined with spec.maxTokens",
    ),
    (
        set_model("bedrock", {"temperature": "0.1"}, temperature=0),
        "Model/default/m: spec.config.bedrock: 'temperature' can't be combined with spec.temperature",
    ),
    (agent("a", temperature=3), "Agent/default/a: spec.temperature: is 3, must be 2 or less"),
    (agent("a", stop=[]), "Agent/default/a: spec.stop: "),
    (
        agent("a", executionEngine={"name": "e"}, topP=0.5),
        "Agent/default/a: spec.topP: can't be used by an agent that is executed elsewhere",
    ),
    (tool("grpc"), "Tool/default/t: spec.type: 'grpc' is unknown"),
    (tool("http"), "Tool/default/t: spec.http: is missing: a tool of type 'http' needs {url}"),
    (http(url=""), "Tool/default/t: spec.http.url: is not an address"),
    (http(url="ftp://host"), "Tool/default/t: spec.http.url: is not an address"),
    (http(timeout="9999999h"), "Tool/default/t: spec.http.timeout: is not a usable duration: from 1ms to ten years"),
    (http(timeout="soon"), "Tool/default/t: spec.http.timeout: is not a timeout"),
    (http(headers=[{"value": "v"}]), "Tool/default/t: spec.http.headers[0].name: is missing"),
    (http(headers=[{"name": "n", "value": {}}]), "spec.http.headers[0].value: needs either value or valueFrom"),
    (
        tool("http", http={"url": "https://host"}, inputSchema={"type": "thing"}),
        "spec.inputSchema: is not a JSON Schema",
    ),
    (
        tool("http", http={"url": "https://h"}, inputSchema={"type": "object", "properties": {"a": {"type": "int"}}}),
        "Tool/default/t: spec.inputSchema: is not a JSON Schema: $.properties.a.type: 'int' is not valid",
    ),
    (
        tool("http", http={"url": "https://h"}, inputSchema={"$ref": "#"}),
        "Tool/default/t: spec.inputSchema: applies itself to the same value endlessly, by '#': no value can be",
    ),
    (
        agent("a", outputSchema={"$defs": {"b": {"anyOf": [{"not": {"$ref": "#/$defs/b"}}]}}}),
        "Agent/default/a: spec.outputSchema: applies itself to the same value endlessly, by '#/$defs/b'",
    ),
    (
        tool("http", http={"url": "https://h"}, inputSchema={"properties": {"a": {"items": {"pattern": "(a"}}}}),
        "Tool/default/t: spec.inputSchema: is not a JSON Schema: $.properties.a.items.pattern: '(a' is not a 'regex'",
    ),
    (
        agent("a", outputSchema={"enum": [[]] * 10_000}),
        "Agent/default/a: spec.outputSchema: has more than 10,000 objects and lists",
    ),
    (
        agent("a", outputSchema={"unevaluatedProperties": False, "anyOf": [{"patternProperties": {"^a": {}}}]}),
        "Agent/default/a: spec.outputSchema: has unevaluatedProperties and patternProperties",
    ),
    (
        tool("http", http={"url": "https://h"}, mcp={"mcpServerRef": {"name": "s"}, "toolName": "f"}),
        "Tool/default/t: spec.mcp: can't be used for a tool of type 'http'",
    ),
    (tool("mcp"), "Tool/default/t: spec.mcp: is missing: a tool of type 'mcp' needs {mcpServerRef, toolName}"),
    (tool("mcp", mcp={"toolName": "f"}), "Tool/default/t: spec.mcp.mcpServerRef: is missing"),
    (tool("mcp", mcp={"mcpServerRef": {}, "toolName": "f"}), "Tool/default/t: spec.mcp.mcpServerRef.name: is missing"),
    (tool("mcp", mcp={"mcpServerRef": {"name": "s"}, "toolName": ""}), "Tool/default/t: spec.mcp.toolName: is missing"),
    (tool("mcp", mcpServer="s"), "Tool/default/t: spec.function: is missing"),
    (tool("mcp", function="f"), "Tool/default/t: spec.mcpServer: is missing"),
    (
        tool("mcp", mcpServer="s", mcp={"mcpServerRef": {"name": "s"}, "toolName": "f"}),
        "Tool/default/t: spec.mcpServer: can't be combined with mcp",
    ),
    (tool("agent"), "Tool/default/t: spec.agent: is missing: a tool of type 'agent' needs {name}"),
    (tool("team", team={}), "Tool/default/t: spec.team.name: is missing"),
    (
        tool("team", team={"name": "x"}, agent={"name": "a"}),
        "Tool/default/t: spec.agent: can't be used for a tool of type",
    ),
    (spec("Memory"), "Memory/default/memory: spec.address: is missing"),
    (spec("Memory", address={}), "Memory/default/memory: spec.address: needs either value or valueFrom"),
    (spec("Memory", address="host:8080"), "Memory/default/memory: spec.address: is not an address"),
    (
        spec("Memory", address={"valueFrom": BOTH}),
        "Memory/default/memory: spec.address.valueFrom: needs exactly one of",
    ),
    (spec("MCPServer", transport="http"), "MCPServer/default/mcpserver: spec.address: is missing"),
    (
        spec("MCPServer", address=THERE, transport="stdio"),
        "MCPServer/default/mcpserver: spec.transport: 'stdio' is unknown",
    ),
    (spec("MCPServer", address=THERE, timeout="soon"), "MCPServer/default/mcpserver: spec.timeout: is not a duration"),
    (spec("MCPServer", address=THERE, headers=[{"name": "n"}]), "spec.headers[0].value: is missing"),
    (prealpha("A2AServer", "s", {}), "A2AServer/default/s: spec.address: is missing"),
    (prealpha("A2AServer", "s", {"address": THERE, "pollInterval": "5"}), "spec.pollInterval: is not a duration"),
    (
        spec("A2AServer", address=THERE),
        "A2AServer/default/a2aserver: apiVersion: 'ark.mckinsey.com/v1alpha1' is unknown",
    ),
    (prealpha("ExecutionEngine", "e", {"address": THERE}), "ExecutionEngine/default/e: spec.type: is missing"),
    (prealpha("ExecutionEngine", "e", {"type": "x"}), "ExecutionEngine/default/e: spec.address: is missing"),
    (prealpha("ExecutionEngine", "a2a", {"type": "x", "address": THERE}), "metadata.name: 'a2a' is reserved"),
    (
        prealpha("Agent", "a", {"prompt": "p"}),
        "Agent/default/a: apiVersion: 'ark.mckinsey.com/v1prealpha1' is unknown",
    ),
    (spec("Evaluators"), "Evaluators: kind: 'Evaluators' is not a kind; did you mean 'Evaluator'?"),
]


@pytest.mark.parametrize(("wrong", "says"), WRONG, ids=[f"{each['kind']}-{says[-40:]}" for each, says in WRONG])
def test_an_error_names_its_file_its_resource_and_its_field(write: Writer, wrong: Json, says: str) -> None:
    said = write.refusal(wrong)
    assert any(each.startswith("m.yaml:") and says in each for each in said), said


def filtered(*filters: str) -> Json:
    return agent("a", tools=[{"name": "noop", "functions": [{"name": "jq", "value": each} for each in filters]}])


def test_a_filter_that_jq_does_not_understand_is_refused(write: Writer) -> None:
    endless = '"x" * 1000000000 * 1000000000 | length'
    refused = write.refusal(filtered(".items[", ".a | nothing", ".a", "", 'include "/etc/passwd"; .', endless))
    place = "Agent/default/a: spec.tools[0].functions"
    unknown = "value: is not a valid jq filter:"
    assert [each.partition(": ")[2] for each in refused] == [
        f"{place}[0].{unknown} syntax error, unexpected end of file at <top-level>, line 1, column 7:",
        f"{place}[1].{unknown} nothing/0 is not defined at <top-level>, line 1, column 6:",
        f"{place}[4].{unknown} module not found: /etc/passwd",
        f"{place}[5].value: can't be compiled by jq within 5 s and 512 MB",
    ]


def test_a_setting_of_an_agent_that_its_model_or_a_fallback_cannot_take_is_refused(write: Writer) -> None:
    first = set_model("openai", fallback={"name": "claude"})
    claude = manifest("Model", "claude", {"type": "anthropic", "model": "m", "config": {"anthropic": {}}})
    [problem] = write.refusal(agent("a", modelRef={"name": "m"}, seed=7, temperature=0.2), first, claude)
    expected = "Agent/default/a: spec.seed: can't be sent to a model of the provider 'anthropic': remove it (Model/defa"
    assert problem.startswith("m.yaml:")
    assert expected in problem


def test_a_copy_with_a_field_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(TypeError, match="AgentSpec has no field promt"):
        AgentSpec(prompt="Answer.").model_copy(update={"promt": "Ask."})
