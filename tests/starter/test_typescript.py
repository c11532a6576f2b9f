"""The TypeScript client and the TypeScript worker of the sample, as npm installs and tsc compiles them."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from temporalio.client import Client

from baton.resources.loader import load_files
from baton.testing import Reply, Request, Script, ScriptedToolCall, ScriptLine
from tests.harness.environment import Environment, Json, agent, call, manifest, team
from tests.harness.manifests import Writer
from tests.harness.processes import ROOT, process_env

pytestmark = [
    pytest.mark.full,  # it installs from the index of npm
    pytest.mark.timeout(900),
    pytest.mark.skipif(not (shutil.which("node") and shutil.which("npm")), reason="there is no Node.js with npm here"),
]

CLIENT = Path("clients", "typescript")
SAMPLE = Path("samples", "application", "typescript")

DECISION: Json = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "amount": {"type": "integer"}},
    "required": ["approved", "amount"],
}
PAY: Json = {
    "type": "activity",
    "description": "Pays an amount in euros.",
    "inputSchema": {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]},
    "approval": {"required": True},
    "activity": {"type": "payClaim", "taskQueue": "payments"},
}
MANIFESTS = [
    team("claims", "adjuster", strategy="sequential"),
    agent("adjuster", "pay", outputSchema=DECISION),
    manifest("Tool", "pay", PAY),
    manifest(
        "Team", "interview", {"strategy": "sequential", "members": [{"name": "guest", "type": "human", "prompt": "?"}]}
    ),
    team("circle", "talker", maxTurns=500),
    agent("talker"),
    agent("locked-out"),
    agent("editor", clients={"tools": True}),
]


def answer(request: Request) -> Reply:
    """The adjuster pays 120, and decides as the tool's result says; the others talk, or are refused."""
    text = json.dumps(request["messages"])
    if "You are locked-out." in text:
        return Reply(status=401)
    if "You are editor." in text:
        return Reply(calls=[ScriptedToolCall(name="open_file", arguments={})])
    if "You are adjuster." not in text:
        return Reply(text="Hm.", delay=0.05)
    results = [message["content"] for message in request["messages"] if message["role"] == "tool"]
    if not results:
        return Reply(calls=[ScriptedToolCall(name="pay", arguments={"amount": 120})])
    is_paid = "100 EUR" in results[0] and "Be brief." in text
    return Reply(text=json.dumps({"approved": is_paid, "amount": 100 if is_paid else 0}))


def npm(folder: Path, *arguments: str) -> None:
    """Runs a command of npm to its end."""
    done = subprocess.run(["npm", *arguments], cwd=folder, env=process_env(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the client and the sample, installed and compiled."""
    root = tmp_path_factory.mktemp("typescript")
    for folder in (CLIENT, SAMPLE):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("node_modules", "dist"))
    shutil.copy(ROOT / "clients" / "protocol.schema.json", root / "clients")
    for folder in (CLIENT, SAMPLE):  # the sample installs the built client
        npm(root / folder, "ci", "--no-audit", "--no-fund")
        npm(root / folder, "run", "build")
    return root


@asynccontextmanager
async def payments(built: Path, address: str) -> AsyncIterator[None]:
    """Runs the worker with the activities of the sample."""
    process = await asyncio.create_subprocess_exec(
        *("node", "dist/payments.js"), cwd=built / SAMPLE, env=process_env(TEMPORAL_ADDRESS=address)
    )
    try:
        yield
    finally:
        process.terminate()
        assert await process.wait() == 0


async def node(folder: Path, env: Environment, *command: str) -> str:
    """Runs a program of a client to its end; what it has printed."""
    address = env.client.service_client.config.target_host
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=process_env(TEMPORAL_ADDRESS=address, BATON_TASK_QUEUE=env.task_queue),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0, printed.decode()
    return printed.decode()


def test_the_committed_types_are_generated_from_the_schema_of_the_protocol(built: Path) -> None:
    generated = built / CLIENT / "src" / "protocol.ts"
    generated.unlink()
    npm(built / CLIENT, "run", "generate")
    assert generated.read_text() == (ROOT / CLIENT / "src" / "protocol.ts").read_text(), "write it anew: make schema"


@pytest.mark.slow
async def test_a_typescript_client_starts_reads_and_controls_runs(built: Path, client: Client, tmp_path: Path) -> None:
    catalog = load_files([Writer(tmp_path).file(*MANIFESTS)])
    async with Environment.running(client, tmp_path, catalog=catalog) as env:
        env.answer = answer
        async with payments(built, client.service_client.config.target_host):
            printed = await node(built / CLIENT, env, "npm", "test")
        assert "fail 0" in printed
        assert "pass 9" in printed


async def test_a_typescript_worker_pays_what_a_team_has_asked_for_and_a_client_has_approved(
    built: Path, client: Client, tmp_path: Path
) -> None:
    catalog = load_files([ROOT / "samples" / "application" / "teams"])
    adjuster = ScriptLine(system="insurance adjuster", agent="adjuster", say=[Reply(text="Some 300 euros.")])
    pays = call("pay-claim", amount=300, reason="a stolen bicycle")
    said = [pays, '{"settled": true, "amount": 300}']
    cashier = ScriptLine.model_validate({"system": "cashier", "agent": "cashier", "say": said})
    async with Environment.running(client, tmp_path, catalog=catalog) as env:
        env.answer = Script(lines=[adjuster, cashier]).answer
        async with payments(built, client.service_client.config.target_host):
            printed = await node(built / SAMPLE, env, "node", "dist/settle.js")
        assert printed.splitlines()[-1] == "paid 300 EUR"
        results = [
            message["content"]
            for request in env.model.requests
            for message in request.body["messages"]
            if message["role"] == "tool"
        ]
    assert '"paid":"300 EUR"' in results[-1]
