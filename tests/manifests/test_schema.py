"""The JSON Schema for editors: it is up to date, and accepts and refuses what the loader does."""

import ast
import contextlib
import copy
import cProfile
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from baton.resources.agent import Agent
from baton.resources.catalog import KINDS
from baton.resources.documents import Document, read_documents
from baton.resources.json_schema import broken_schema_rules
from baton.resources.loader import load_documents
from baton.resources.problems import ManifestError
from baton.resources.schema import manifest_schema
from tests.harness.environment import Json, agent, manifest, team
from tests.harness.manifests import Writer, model, prealpha, query
from tests.harness.processes import ROOT, baton, process_env

SCHEMA: Json = manifest_schema()
VALIDATOR = Draft202012Validator(SCHEMA)
SAMPLES = sorted((ROOT / "samples").glob("*.yaml"))
MODELINE = "# yaml-language-server: $schema="

REF = {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}
HTTP = {"url": "https://host/{city}", "headers": {"a": "b"}, "timeout": "5m", "method": "POST", "body": "{{a}}"}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"k": "v"}}
SECRET = {**CONFIG_MAP, "kind": "Secret", "data": {"k": "dg=="}, "stringData": {"l": "v"}}
BEDROCK = {"type": "bedrock", "model": "m", "config": {"bedrock": {"region": "r", "maxTokens": 5}}}
RICH: list[Json] = [
    query(targets=[{"type": "team", "name": "t", "namespace": "n"}], memory="m", timeout="1h30m", failFast=True),
    query(team={"name": "t"}, serviceAccount={"name": "s"}, ttl="5m", evaluators=[{"name": "e"}], sessionId=None),
    query(selector={"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]}),
    query(team={"name": "t"}, parameters=[{"name": "a", "value": "b"}, {"name": "c", "valueFrom": REF}]),
    team("t", "a", "b", maxTurns=3, onMaxTurns="complete", description="d", loops=False),
    team("t", "a", "b", strategy="graph", graph={"edges": [{"from": "a", "to": "b"}]}),
    team("t", "a", strategy="selector", selector={"agent": {"name": "a"}, "style": "tool"}),
    agent("a", "noop", modelRef={"name": "m"}, maxIterations=5, parallelToolCalls=True, parameters=[]),
    agent(
        "a", tools=[{"name": "x", "type": "custom", "onError": "retry", "functions": [{"name": "jq", "value": ".a"}]}]
    ),
    agent("a", model={"name": "gpt-4", "type": "openai"}, outputSchema={}, executionEngine={"name": "e"}),
    model(baseUrl="http://host", apiKey={"valueFrom": REF}, headers={"a": "b"}, properties={"temperature": "1"}),
    model(headers=[{"name": "a", "value": {"value": "b"}}], baseUrl={"value": "http://host"}),
    manifest("Model", "m", BEDROCK),
    manifest("Model", "m", {"type": "completions", "provider": "gemini", "model": "m", "config": {"gemini": {}}}),
    query(target={"type": "agent", "name": "a"}, conversationId="c", evaluatorSelector={"matchLabels": {"a": "b"}}),
    manifest("Tool", "t", {"type": "http", "http": HTTP, "inputSchema": CITY, "annotations": {"title": "T"}}),
    manifest("Tool", "t", {"type": "mcp", "mcp": {"mcpServerRef": {"name": "s"}, "toolName": "f"}, "description": "d"}),
    manifest("Tool", "t", {"type": "mcp", "mcpServer": "s", "function": "f"}),
    manifest("Tool", "t", {"type": "agent", "agent": {"name": "a"}}),
    manifest("Memory", "m", {"address": "http://host", "headers": {"a": "b"}}),
    manifest(
        "MCPServer", "s", {"address": {"valueFrom": REF}, "transport": "sse", "timeout": "5m", "description": "d"}
    ),
    prealpha("A2AServer", "s", {"address": {"value": "http://host"}, "pollInterval": "1m"}),
    prealpha("ExecutionEngine", "e", {"type": "langchain", "address": {"value": "http://host"}}),
    CONFIG_MAP,
    SECRET,
    {"apiVersion": "v1", "kind": "List", "items": [agent("a"), None, {"kind": "List", "items": [SECRET]}]},
    {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "c"}, "rules": []},
    {"apiVersion": "other.group/v1", "kind": "Agent", "anything": True},
    {"apiVersion": "ark.mckinsey.com/v1alpha1", "kind": "A2ATask", "spec": {}},
    {"no": "kind"},
]


def refusal(data: object) -> str:
    """The error of the loader for a document; empty if it accepts it."""
    try:
        load_documents([Document("m.yaml", copy.deepcopy(data), {})])  # type: ignore[arg-type]  # a test gives it anything
    except ManifestError as error:
        return str(error)
    return ""


@pytest.mark.full
def test_a_schema_is_read_once_however_many_references_it_has() -> None:
    properties = {f"p{each}": {"$ref": "#name"} for each in range(6_000)}
    schema: Json = {"$defs": {"name": {"$anchor": "name", "type": "string"}}, "properties": properties}
    Agent.model_validate(agent("a", outputSchema=schema))
    assert [*broken_schema_rules(schema)] == []


def test_the_schemas_of_a_hundred_runs_with_equal_functions_are_checked_once() -> None:
    with cProfile.Profile() as profile:
        for _ in range(100):
            Agent.model_validate(agent("a", outputSchema={"type": "object", "title": "checked once"}))
    names = [getattr(entry.code, "co_name", "") for entry in profile.getstats() for _ in range(entry.callcount)]
    assert names.count("check_schema") == 1
    for _ in range(2):
        with pytest.raises(ValueError, match="is not a JSON Schema"):
            Agent.model_validate(agent("a", outputSchema={"type": "objekt", "title": "checked once"}))


def test_the_committed_schema_is_up_to_date() -> None:
    printed = baton("schema", env=process_env())
    assert printed.returncode == 0
    assert (ROOT / "schema.json").read_text() == printed.stdout, "write it anew with: make schema"


@pytest.mark.full
def test_the_schema_is_valid_and_has_no_references_to_other_documents() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    text = json.dumps(SCHEMA)
    known = {"#", *(f"#/$defs/{name}" for name in SCHEMA["$defs"])}
    assert set(re.findall(r'"\$ref": "(.*?)"', text)) <= known
    assert "seeds" not in text


def test_the_schema_has_descriptions_values_and_defaults_of_fields() -> None:
    team_fields = SCHEMA["$defs"]["TeamSpec"]["properties"]
    assert team_fields["strategy"]["enum"] == [
        "sequential",
        "parallel",
        "round-robin",
        "selector",
        "graph",
        "debate",
        "handoff",
    ]
    model = SCHEMA["$defs"]["ModelSpec"]["properties"]
    assert "'anthropic' or 'bedrock'" in model["type"]["description"]
    identity = SCHEMA["$defs"]["AzureAuth"]["properties"]["managedIdentity"]
    assert identity["description"] == "not supported yet"
    assert team_fields["onMaxTurns"]["default"] == "fail"
    assert "default" not in team_fields["maxTurns"]
    assert SCHEMA["$defs"]["Secret"]["properties"]["stringData"]["additionalProperties"] == {"type": "string"}
    assert SCHEMA["properties"]["kind"]["examples"] == [*KINDS, "Secret"]
    for spec in ("QuerySpec", "TeamSpec", "AgentSpec", "ModelSpec", "HttpSpec"):
        fields = SCHEMA["$defs"][spec]["properties"]
        assert [name for name, field in fields.items() if not field.get("description")] == []


def _written() -> Iterator[object]:
    """Every document of the samples and of the tests."""
    for sample in SAMPLES:
        yield from (document.data for document in read_documents(sample))
    for file in sorted((ROOT / "tests").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\nkind: " in node.value:
                with contextlib.suppress(yaml.YAMLError):
                    yield from yaml.safe_load_all(node.value)


ACCEPTED = [*RICH, *(data for data in _written() if not refusal(data))]


@pytest.mark.parametrize("data", ACCEPTED, ids=lambda data: str(data)[:60])
def test_what_the_loader_accepts_the_schema_accepts(data: object) -> None:
    assert not refusal(data)
    assert [error.message for error in VALIDATOR.iter_errors(data)] == []


WRONG: list[Json] = [
    query(team={"name": "t"}, inptu="x"),
    query(team={"name": "t", "kind": "x"}),
    query(team="t"),
    query(team={"name": "No Name"}),
    query(team={"name": "t"}, timeout="5 minutes"),
    query(team={"name": "t"}, timeout=300),
    query(team={"name": "t"}, ttl="1d"),
    query(team={"name": "t"}, memory="No Name"),
    query(team={"name": "t"}, memory={"nmae": "m"}),
    query(targets=[{"type": "robot", "name": "a"}]),
    query(targets=[{"type": "agent"}]),
    query(targets={"type": "agent", "name": "a"}),
    team("t", maxTurns=1),
    team("t", "a", maxTurns=0),
    team("t", "a", maxTurns="3"),
    team("t", "a", maxTurns=1.5),
    team("t", "a", maxTurns=True),
    team("t", "a", strategy="round-robbin"),
    team("t", "a", loops="yes"),
    team("t", "x" * 254, maxTurns=1),
    team("-t", "a", maxTurns=1),
    agent("a", prompt=""),
    agent("a", prompt=5),
    agent("a", maxIterations=0),
    agent("a", tools=["noop"]),
    agent("a", tools=[{"name": "noop", "onError": "ignore"}]),
    agent("a", model={"name": "x", "type": "gemini"}),
    model(apiKey=5),
    model(apiKey=""),
    model(apiKey={"valueFrom": {"secretKeyRef": {"name": "s"}}}),
    model(headers={"a": 5}),
    model(headers=[{"name": "a"}]),
    model(properties={"temperature": [1]}),
    manifest("Tool", "t", {"type": "grpc"}),
    manifest("Tool", "t", {"type": "http", "http": {"url": "https://host", "timeout": "0s"}}),
    manifest("Tool", "t", {"type": "http", "http": {"url": "https://host", "timeout": "9" * 400}}),
    manifest("Tool", "t", {"type": "http", "http": {"url": "https://host", "method": "FETCH"}}),
    manifest("Memory", "m", {}),
    manifest("MCPServer", "s", {"address": "http://host", "transport": "stdio"}),
    manifest("A2AServer", "s", {"address": "http://host"}),
    prealpha("ExecutionEngine", "e", {"address": "http://host"}),
    query(selector={"matchExpressions": [{"key": "k", "operator": "Contains", "values": ["v"]}]}),
    {**CONFIG_MAP, "data": {"k": 5}},
    {**CONFIG_MAP, "apiVersion": "v2"},
    {**SECRET, "stringData": {"k": 5}},
    {**SECRET, "stringData": {"k": {"value": "v"}}},
    {**agent("a"), "apiVersion": "ark.mckinsey.com/v2"},
    {**agent("a"), "kind": "Agnet"},
    {**agent("a"), "metadata": {}},
    {**agent("a"), "metadata": {"name": "a", "label": {}}},
    {**agent("a"), "specs": {}},
    {"apiVersion": "ark.mckinsey.com/v1alpha1", "metadata": {"name": "a"}},
    {"kind": "Agent", "metadata": {"name": "a"}, "spec": {"prompt": "p"}},
    {"apiVersion": "v1", "kind": "List", "items": [agent("a", prompt=5)]},
]


@pytest.mark.parametrize("data", WRONG, ids=lambda data: str(data.get("spec", data))[:60])
def test_the_schema_and_the_loader_refuse_the_same_single_errors(data: Json) -> None:
    assert refusal(data)
    assert not VALIDATOR.is_valid(data)


@pytest.mark.parametrize("data", ["text", 5, [], True])
def test_the_schema_and_the_loader_refuse_a_document_that_is_no_mapping(data: object) -> None:
    assert refusal(data)
    assert not VALIDATOR.is_valid(data)


def test_an_error_is_reported_for_its_own_kind_only() -> None:
    (error,) = VALIDATOR.iter_errors(team("t", "a", strategy="robin"))
    assert error.json_path == "$.spec.strategy"
    assert "'robin' is not one of ['sequential'" in error.message


PLAIN: list[object] = [None, 0, 1, 2**70, 1.5, True, False, "", "x", "No Name", "5m", "graph", "v1", [], ["x"], {}]
MAPPINGS = [{"name": "a"}, {"value": "v"}, {"valueFrom": REF}, {"a": "b"}, {"a": 5}]
ANYTHING = st.sampled_from([*PLAIN, *MAPPINGS, *([each] for each in MAPPINGS)])
KEYS = st.sampled_from(sorted({key for each in SCHEMA["$defs"].values() for key in each.get("properties", ())}))


@st.composite
def changed(draw: st.DrawFn) -> Json:
    """A manifest with one value replaced, added or removed."""
    data = copy.deepcopy(draw(st.sampled_from(RICH)))
    place: Any = data
    while isinstance(place, dict | list) and place:
        key = draw(st.sampled_from([*place] if isinstance(place, dict) else range(len(place))))
        inner = place[key]
        if not (isinstance(inner, dict | list) and inner) or draw(st.integers(0, 3)) == 0:
            _change(draw, place, key)
            break
        place = inner
    return data


def _change(draw: st.DrawFn, place: Any, key: Any) -> None:
    what = draw(st.sampled_from(["replace", "put in", "take out"]))
    if what == "take out":
        del place[key]
    elif what == "put in" and isinstance(place, dict):
        place[draw(KEYS)] = draw(ANYTHING)
    else:
        place[key] = draw(ANYTHING)


@pytest.mark.full
@given(changed())
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_however_a_manifest_is_changed_the_schema_accepts_it_if_the_loader_does(data: Json) -> None:
    said = refusal(data)
    if not said:
        assert [error.message for error in VALIDATOR.iter_errors(data)] == []
    elif re.search(r" is not a field of |is (text|empty|a \w+|true or false), must be ", said):
        assert not VALIDATOR.is_valid(data), said


def test_every_document_of_a_sample_refers_to_the_schema() -> None:
    for sample in SAMPLES:
        for document in sample.read_text().split("\n---\n"):
            (path,) = [line.removeprefix(MODELINE) for line in document.splitlines() if line.startswith(MODELINE)]
            assert (sample.parent / path).resolve() == ROOT / "schema.json"


def test_a_schema_next_to_the_manifests_is_not_read_as_one(write: Writer) -> None:
    write.file(agent("a"))
    (write.folder / ".schema.json").write_text((ROOT / "schema.json").read_text())
    done = baton("validate", "-f", write.folder, env=process_env())
    assert (done.stdout, done.stderr) == ("1 manifest is valid\n", "")
