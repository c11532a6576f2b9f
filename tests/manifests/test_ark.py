"""ARK's own manifests, from the folder BATON_ARK_MANIFESTS with ``samples/``, ``invalid/`` and ``scenarios/``.

``scenarios/NAME/`` holds the manifests of an end-to-end test; the address and key of its model are filled in here.
"""

import base64
import json
import os
from pathlib import Path

import pytest
import yaml

from baton.resources.loader import load_files
from baton.testing import Reply, Request, ScriptedToolCall
from tests.harness.environment import Json, agent, manifest
from tests.harness.manifests import Writer, model, prealpha
from tests.harness.memory_server import MemoryServer
from tests.harness.processes import baton, process_env
from tests.harness.tool_server import ToolServer
from tests.harness.user_machine import UserMachine

GIVEN = os.environ.get("BATON_ARK_MANIFESTS", "")
NOBODY = pytest.param(Path("nowhere"), marks=pytest.mark.skip(reason="BATON_ARK_MANIFESTS names no folder"))
INVALID = sorted(Path(GIVEN, "invalid").glob("*.yaml")) if GIVEN else []
SCENARIOS = sorted(each for each in Path(GIVEN, "scenarios").iterdir() if each.is_dir()) if GIVEN else []
TOKEN = "azure-0123456789-token"
OUTSIDE: list[Json] = [
    agent("financial-analyst"),
    model() | {"metadata": {"name": "gemini"}},
    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shared"}, "data": {"suffix": "Bye."}},
]
"""Resources that the samples need in addition, beside a Memory."""


def memory(url: str) -> Json:
    """The Memory that the samples need."""
    return manifest("Memory", "postgres-memory", {"address": {"value": url}})


def answer(request: Request) -> Reply:
    """Chooses the first candidate, uses each tool once, and terminates a discussion that has gone on for a while."""
    tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in request.get("tools", [])}
    roles = [each["role"] for each in request["messages"]]
    if chosen := tools.get("select-next-speaker"):
        return Reply(
            calls=[
                ScriptedToolCall(
                    name="select-next-speaker", arguments={"name": chosen["properties"]["name"]["enum"][0]}
                )
            ]
        )
    if "terminate" in tools and roles.count("assistant") > 2:
        return Reply(calls=[ScriptedToolCall(name="terminate", arguments={"response": "We have reached an end."})])
    if "weather-tool" in tools and "tool" not in roles:
        return Reply(calls=[ScriptedToolCall(name="weather-tool", arguments={"latitude": 40.7, "longitude": -74.0})])
    return Reply(text=f"An answer to: {request['messages'][-1]['content'][:80]}")


@pytest.mark.parametrize("file", INVALID or [NOBODY], ids=lambda file: file.stem)
def test_what_ark_refuses_is_refused(file: Path) -> None:
    done = baton("validate", "-f", file, env=process_env())
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{file}:" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not GIVEN, reason="BATON_ARK_MANIFESTS names no folder")
def test_arks_samples_are_valid_as_one_folder(tmp_path: Path) -> None:
    assert (
        load_files(
            [Path(GIVEN, "samples"), Writer(tmp_path).file(*OUTSIDE, memory("http://host"))], recursive=True
        ).unresolved()
        == []
    )


def test_servers_with_all_fields_of_ark_and_what_its_controllers_make_of_them_are_valid(tmp_path: Path) -> None:
    address = {"valueFrom": {"serviceRef": {"name": "far", "port": "http", "path": "/mcp"}}}
    headers = [{"name": "X-Key", "value": {"valueFrom": {"secretKeyRef": {"name": "safe", "key": "key"}}}}]
    keys = {"accessTokenKey": "a", "refreshTokenKey": "r", "expiresAtKey": "e", "clientIDKey": "i"}
    token = {"tokenSecretRef": {"name": "safe", **keys, "clientSecretKey": "s"}}
    common = {"address": address, "headers": headers, "description": "d", "pollInterval": "1m"}
    tool = manifest("Tool", "files-read-file", {"type": "mcp", "description": "Reads.", "inputSchema": {}})
    tool["metadata"]["labels"] = {"mcp/server": "files"}
    tool["spec"] |= {"mcp": {"mcpServerRef": {"name": "files", "namespace": "default"}, "toolName": "read_file"}}
    tool["spec"]["annotations"] = {"readOnlyHint": True, "destructiveHint": False, "title": "Read"}
    made = agent("oracle", executionEngine={"name": "a2a"}, prompt="You are oracle. It knows.", description="It knows.")
    made["metadata"]["annotations"] = {
        "a2a.server/name": "far",
        "a2a.server/address": "http://far",
        "a2a.server/skills": "[]",
    }
    made["metadata"]["labels"] = {"a2a.server/name": "far"}
    engine = {"type": "langchain", "address": {"value": "http://far"}, "description": "d"}
    given = [
        manifest("MCPServer", "files", {**common, "transport": "sse", "timeout": "30s", "authorization": token}),
        *(prealpha("A2AServer", "far", common), prealpha("ExecutionEngine", "langchain", engine), tool, made),
        *(agent("reader", "files-read-file"), agent("external", executionEngine={"name": "langchain"})),
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "safe"},
            "stringData": {"key": "v", "a": "token-1"},
        },
    ]
    assert load_files([Writer(tmp_path).file(*given)]).unresolved() == []


@pytest.mark.skipif(not GIVEN, reason="BATON_ARK_MANIFESTS names no folder")
def test_arks_samples_run(machine: UserMachine) -> None:
    machine.model._answer = answer
    own = model(baseUrl=machine.env["OPENAI_BASE_URL"])
    models = [own | {"metadata": {"name": name}} for name in ("azure", "default", "gemini")]
    samples = [each for file in Path(GIVEN, "samples").glob("*.yaml") for each in yaml.safe_load_all(file.read_text())]
    with MemoryServer("older").serving() as service:
        outside = machine.write(OUTSIDE[0], *OUTSIDE[2:], memory(service.url), *models)
        for query in (each for each in samples if each and each["kind"] == "Query"):
            done = machine.run("run", f"query/{query['metadata']['name']}", "-f", Path(GIVEN, "samples"), "-f", outside)
            assert (done.returncode, bool(done.stdout.strip())) == (0, True), done.stderr


@pytest.mark.parametrize("scenario", SCENARIOS or [NOBODY], ids=lambda folder: folder.name)
def test_a_scenario_of_ark_passes_its_own_test(machine: UserMachine, tool_server: ToolServer, scenario: Path) -> None:
    machine.model._answer = answer
    coded = base64.b64encode(TOKEN.encode()).decode()
    filled = {
        "(base64_encode($azure.token))": coded,
        "($azure.token)": TOKEN,
        "($azure.url)": machine.env["OPENAI_BASE_URL"].removesuffix("/v1"),
        "($namespace)": "default",
        "https://api.open-meteo.com": tool_server.url,
    }
    for file in scenario.glob("a*.yaml"):
        text = file.read_text()
        for place, value in filled.items():
            text = text.replace(place, value)
        (machine.folder / file.name).write_text(text)
    done = machine.run("run", "-f", ".", "-o", "ark-json")
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout)["status"]
    assert (status["phase"], status["response"]["phase"]) == ("done", "done")
    assert len(status["response"]["content"]) > 10
    assert json.loads(status["response"]["raw"])
    assert status["conditions"][0]["reason"] == "QuerySucceeded"
    kept = b"".join(file.read_bytes() for file in machine.state_dir.folder.rglob("*") if file.is_file())
    assert TOKEN.encode() not in kept
