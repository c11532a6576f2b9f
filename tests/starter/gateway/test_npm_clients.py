"""The clients of MCP and AG-UI for JavaScript, as npm installs them, and the scenarios of MCP's conformance suite."""

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.harness.environment import Json, line
from tests.harness.gateway import GatewayServer
from tests.harness.processes import process_env
from tests.starter.gateway.test_mcp_server import CALCULATE
from tests.starter.gateway.test_mcp_server import MANIFESTS as MANIFESTS

pytestmark = [
    pytest.mark.full,  # it installs from the index of npm
    pytest.mark.timeout(900),
    pytest.mark.skipif(not (shutil.which("node") and shutil.which("npm")), reason="there is no Node.js with npm here"),
]

PACKAGES = [
    "@modelcontextprotocol/sdk@1.32.2",
    "@modelcontextprotocol/inspector@0.15.0",
    "@modelcontextprotocol/conformance@0.2.0-alpha.12",
    "@ag-ui/client@1.0.0",
    "node@22.23.3",  # for the conformance suite
]
SCENARIOS = [
    "server-initialize",
    "ping",
    "tools-list",
    "dns-rebinding-protection",
    "http-header-validation",
    "input-required-result-unsupported-methods",
]
"""The scenarios that need no tools of the suite's own. docs/gateway-mcp.md has a table of all."""

MCP_CLIENT = """
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
const client = new Client({ name: "test", version: "1" });
await client.connect(new StreamableHTTPClientTransport(new URL(`${process.argv[2]}/mcp`)));
const tools = (await client.listTools()).tools.map((tool) => tool.name);
const spoken = [];
const onprogress = (progress) => spoken.push(progress.message);
const answer = await client.callTool({ name: "team_duo", arguments: { input: "Why?" } }, undefined, { onprogress });
const verdict = await client.callTool({ name: "agent_judge", arguments: { input: "Well?" } });
console.log(JSON.stringify({ tools, spoken, text: answer.content[0].text, verdict: verdict.structuredContent }));
await client.close();
"""
AG_UI_CLIENT = """
import { HttpAgent } from "@ag-ui/client";
const agent = new HttpAgent({ url: `${process.argv[2]}/ag-ui/agent/careful`, threadId: process.argv[2] });
agent.messages = [{ id: "1", role: "user", content: "2+2?" }];
await agent.runAgent({ runId: "r1" });
const resume = agent.pendingInterrupts.map((interrupt) => (
  { interruptId: interrupt.id, status: "resolved", payload: { approved: true } }
));
await agent.runAgent({ runId: "r2", resume });
console.log(JSON.stringify({ interrupts: resume.length, messages: agent.messages, state: agent.state }));
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages and the programs of the tests."""
    folder = tmp_path_factory.mktemp("npm")
    (folder / "package.json").write_text('{"private": true}')
    command = ["npm", "install", "--no-audit", "--no-fund", *PACKAGES]
    done = subprocess.run(command, cwd=folder, env=process_env(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "mcp.mjs").write_text(MCP_CLIENT)
    (folder / "ag-ui.mjs").write_text(AG_UI_CLIENT)
    return folder


async def output(folder: Path, *command: str) -> str:
    """Runs a program to its end; what it has printed."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=process_env(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0, printed.decode()
    return printed.decode()


@pytest.mark.slow
async def test_the_mcp_sdk_of_npm_calls_teams(gateway: GatewayServer, installed: Path) -> None:
    gateway.env.script(line("one", "a"), line("two", "b"), line("judge", '{"ok": true}'))
    printed: Json = json.loads(await output(installed, "node", "mcp.mjs", gateway.url))
    assert {"team_duo", "agent_one", "baton_result"} < {*printed["tools"]}
    assert (printed["text"], printed["spoken"]) == ("b", ["one speaks", "two speaks"])
    assert printed["verdict"] == {"ok": True}


@pytest.mark.slow
async def test_the_inspector_lists_tools_and_calls_one(gateway: GatewayServer, installed: Path) -> None:
    gateway.env.script(line("one", "a"))
    inspector = ("npx", "@modelcontextprotocol/inspector", "--cli", f"{gateway.url}/mcp", "--transport", "http")
    listed = json.loads(await output(installed, *inspector, "--method", "tools/list"))
    assert "agent_one" in {tool["name"] for tool in listed["tools"]}
    call = ("--method", "tools/call", "--tool-name", "agent_one", "--tool-arg", "input=Why?")
    assert json.loads(await output(installed, *inspector, *call))["content"] == [{"type": "text", "text": "a"}]


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_a_scenario_of_the_conformance_suite_passes(
    gateway: GatewayServer, installed: Path, scenario: str
) -> None:
    program = "node_modules/@modelcontextprotocol/conformance/dist/index.js"
    command = (program, "server", "--url", f"{gateway.url}/mcp", "--scenario", scenario)
    printed = await output(installed, "node_modules/node/bin/node", *command)
    assert ", 0 failed, 0 warnings" in printed


async def test_the_ag_ui_client_of_npm_goes_on_after_an_interrupt(gateway: GatewayServer, installed: Path) -> None:
    gateway.env.script(line("careful", CALCULATE, "It is 4."))
    printed: Json = json.loads(await output(installed, "node", "ag-ui.mjs", gateway.url))
    assert printed["interrupts"] == 1
    assert [message["role"] for message in printed["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert printed["messages"][-1]["content"] == "It is 4."
    assert printed["state"]["phase"] == "Completed"
