"""The YAML examples of ARK's query documentation, as printed; fragments are completed, and servers are local."""

from pathlib import Path

import pytest
import yaml
from temporalio.client import Client

from baton.resources.loader import load_files
from baton.testing import Reply, Request
from tests.harness.environment import Environment, Json, agent, manifest, team
from tests.harness.manifests import Writer
from tests.harness.tool_server import Answer, ToolServer

SAMPLE = """
apiVersion: ark.mckinsey.com/v1alpha1
kind: Query
metadata:
  name: sample-query
  namespace: default
spec:
  # User input
  input: "What's the weather in Madrid today?"

  # Query targets (can be multiple)
  targets:
    - type: agent          # Types: agent, team, model, tool
      name: weather-agent

  # Dynamic parameters (optional)
  parameters:
    - name: location
      value: "Madrid"
    - name: language
      value: "English"

  # Memory reference for context (optional)
  memory:
    name: user-conversation
    namespace: default

  # Session ID for conversations (optional)
  sessionId: "user-123-session"

  # Service account for RBAC (optional)
  serviceAccount: weather-service-account

  # Execution timeout (optional)
  timeout: 300s

  # TTL for auto-cleanup (optional)
  ttl: 1h
"""

TEMPLATES = """
# Templates can be used in input
input: "What's the weather in {{location}} in {{language}}?"
parameters:
  - name: location
    value: "Madrid"
  - name: language
    value: "English"
"""

RESOLUTION = """
# Original input
input: "What's the weather in {{location}}?"
parameters:
  - name: location
    value: "Madrid"
"""

HTTP_TOOL = """
apiVersion: ark.mckinsey.com/v1alpha1
kind: Tool
spec:
  type: http
  http:
    url: "https://api.weather.com/v1/current"
    method: GET
    headers:
      Authorization: "Bearer {{api_key}}"
"""

SIMPLE = """
spec:
  input: "Explain what photosynthesis is"
  targets:
    - type: agent
      name: biology-tutor
"""

SEQUENTIAL = """
spec:
  input: "Analyze Q3 sales and propose improvements"
  targets:
    - type: team
      name: sales-analysis-team  # researcher → analyst → presenter
"""

COMPARISON = """
spec:
  input: "What is the capital of France?"
  targets:
    - type: model
      name: gpt-4
    - type: model
      name: claude-3
    - type: model
      name: gemini-pro
"""

DIRECT_TOOL = """
spec:
  input: '{"city": "Madrid", "country": "Spain"}'
  targets:
    - type: tool
      name: weather-api
"""


def says_who(request: Request) -> Reply:
    system = next((each["content"] for each in request["messages"] if each["role"] == "system"), request["model"])
    return Reply(text=f"{system} {request['messages'][-1]['content']}")


async def run(env: Environment, printed: Json, *manifests: Json) -> Json:
    """The status of the printed query, as JSON."""
    handle = await env.start("query", {"name": "sample-query", "spec": printed, "resources": [*manifests]})
    return (await env.status(handle)).model_dump(mode="json", exclude_unset=True)


async def test_the_sample_query_runs_with_all_its_fields(env: Environment) -> None:
    env.answer = says_who
    weather = agent("weather-agent", prompt="Weather of {{.place}}.")
    place = {"name": "place", "valueFrom": {"queryParameterRef": {"name": "location"}}}
    weather["spec"]["parameters"] = [place]
    given = {"name": "sample-query", "resources": [yaml.safe_load(SAMPLE), weather]}
    for count in (2, 4):  # with the system prompt; the second continues the first
        handle = await env.start("query", given)
        status = await env.status(handle)
        assert (status.phase, status.conversation_id) == ("Completed", "user-123-session")
        assert status.message == "Weather of Madrid. What's the weather in Madrid today?"
        assert len(env.model.requests[-1].body["messages"]) == count
        events = [each async for each in handle.fetch_history_events()]
        started = [each.start_child_workflow_execution_initiated_event_attributes for each in events]
        [expiry] = [each for each in started if each.workflow_type.name == "expire"]
        assert b'{"seconds":3600.0}' in expiry.input.SerializeToString()


@pytest.mark.parametrize(
    ("printed", "asked"),
    [
        (TEMPLATES, "What's the weather in Madrid in English?"),
        (RESOLUTION, "What's the weather in Madrid?"),
    ],
)
async def test_templates_in_an_input_are_resolved(env: Environment, printed: str, asked: str) -> None:
    env.answer = says_who
    spec = {**yaml.safe_load(printed), "targets": [{"type": "agent", "name": "weather-agent"}]}
    status = await run(env, spec, agent("weather-agent"))
    assert status["phase"] == "Completed"
    assert status["message"] == f"You are weather-agent. {asked}"


async def test_an_agent_is_asked(env: Environment) -> None:
    env.answer = says_who
    status = await run(env, yaml.safe_load(SIMPLE)["spec"], agent("biology-tutor"))
    assert status["message"] == "You are biology-tutor. Explain what photosynthesis is"


async def test_a_sequential_team_runs(env: Environment) -> None:
    env.answer = says_who
    members = "researcher", "analyst", "presenter"
    sales = team("sales-analysis-team", *members, strategy="sequential")
    status = await run(env, yaml.safe_load(SEQUENTIAL)["spec"], sales, *map(agent, members))
    assert status["phase"] == "Completed"
    assert status["tokenUsage"]["modelCalls"] == 3
    (response,) = status["responses"]
    assert (response["target"]["name"], response["status"]) == ("sales-analysis-team", "Success")
    assert [each["name"] for each in response["messages"]] == ["researcher", "analyst", "presenter"]


async def test_models_are_compared(env: Environment) -> None:
    env.answer = lambda request: Reply(text=f"{request['model']} says Paris")
    names = "gpt-4", "claude-3", "gemini-pro"
    config = {"openai": {"baseUrl": env.model_url}}
    models = [manifest("Model", name, {"type": "openai", "model": name, "config": config}) for name in names]
    status = await run(env, yaml.safe_load(COMPARISON)["spec"], *models)
    assert [each["message"] for each in status["responses"]] == [f"{name} says Paris" for name in names]
    assert {each["status"] for each in status["responses"]} == {"Success"}


async def test_a_tool_is_executed_directly_with_its_header(
    client: Client, tool_server: ToolServer, tmp_path: Path
) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"key": "k-0123456789"}}
    own = load_files([Writer(tmp_path).file(secret)])
    tool = {
        **yaml.safe_load(HTTP_TOOL.replace("https://api.weather.com", tool_server.url)),
        "metadata": {"name": "weather-api"},
    }
    tool["spec"]["parameters"] = [{"name": "api_key", "valueFrom": {"secretKeyRef": {"name": "s", "key": "key"}}}]
    async with Environment.running(client, tmp_path, own) as env:
        status = await run(env, yaml.safe_load(DIRECT_TOOL)["spec"], tool)
    assert (status["phase"], status["message"], status["tokenUsage"]["toolCalls"]) == ("Completed", "sunny", 1)
    assert tool_server.seen[0].headers["authorization"] == "Bearer k-0123456789"
    assert tool_server.seen[0].path == "/v1/current?city=Madrid&country=Spain"


async def test_a_failed_tool_fails_its_target_with_its_error(env: Environment, tool_server: ToolServer) -> None:
    tool_server.answers(Answer("down", 500))
    site_tool = manifest("Tool", "weather-api", {"type": "http", "http": {"url": tool_server.url, "method": "POST"}})
    status = await run(env, yaml.safe_load(DIRECT_TOOL)["spec"], site_tool)
    assert (status["phase"], status["responses"][0]["status"]) == ("Failed", "Failed")
    assert status["message"] == f"Error: {tool_server.host} answered HTTP 500 Internal Server Error: down"
    assert status["error"] == status["responses"][0]["error"] == status["message"].removeprefix("Error: ")
