"""OpenAI's protocols, with OpenAI's client of npm."""

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.harness.environment import line
from tests.harness.gateway import GatewayServer
from tests.harness.processes import process_env

pytestmark = [
    pytest.mark.full,  # it installs from the index of npm
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (shutil.which("node") and shutil.which("npm")), reason="there is no Node.js with npm here"),
]

PROGRAM = """
import OpenAI from "openai";
const api = new OpenAI({ baseURL: process.env.GATEWAY + "/v1", apiKey: "none" });
const messages = [{ role: "user", content: "Why?" }];
const chat = await api.chat.completions.create({ model: "agent/one", messages });
let streamed = "";
for await (const chunk of await api.chat.completions.create({ model: "agent/one", messages, stream: true }))
  streamed += chunk.choices[0]?.delta?.content ?? "";
const response = await api.responses.create({ model: "team/duo", input: "Why?" });
let id, last, text = "";
const asked = { model: "team/duo", input: "Why?", background: true, stream: true };
for await (const event of await api.responses.create(asked)) {
  id ??= event.response?.id;
  last = event.sequence_number;
  if (event.type === "response.output_text.delta") { text += event.delta; break; }
}
for await (const event of await api.responses.retrieve(id, { stream: true, starting_after: last }))
  if (event.type === "response.output_text.delta") text += event.delta;
const retrieved = await api.responses.retrieve(id);
console.log(JSON.stringify({
  chat: chat.choices[0].message.content, streamed, response: response.output.map((item) => item.phase),
  text, retrieved: retrieved.output_text,
}));
"""

STREAMED = """
import OpenAI from "openai";
const api = new OpenAI({ baseURL: process.env.GATEWAY + "/v1", apiKey: "none" });
const shown = [];
const read = async (asked) => {
  const stream = api.responses.stream(asked);
  let text = "";
  stream.on("response.output_text.delta", (event) => (text = event.snapshot));
  const response = await stream.finalResponse();
  shown.push({ text, output: response.output_text });
  return response.id;
};
const id = await read({ model: "agent/one", input: "Why?" });
await read({ response_id: id, starting_after: 1 });
console.log(JSON.stringify(shown));
"""


def run(folder: Path, *command: str, **variables: str) -> str:
    """The output of a command."""
    done = subprocess.run(command, cwd=folder, env=process_env(**variables), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def output(folder: Path, program: str, gateway: GatewayServer) -> Any:
    """The JSON that a program with OpenAI's client prints."""
    (folder / "program.mjs").write_text(program)
    await asyncio.to_thread(run, folder, "npm", "install", "--no-audit", "--no-fund", "openai@6")
    return json.loads(await asyncio.to_thread(run, folder, "node", "program.mjs", GATEWAY=gateway.url))


@pytest.mark.slow
async def test_the_client_of_npm_chats_streams_and_reconnects(gateway: GatewayServer, tmp_path: Path) -> None:
    gateway.env.script(line("one", {"text": "one two three four", "pause": 0.2}), line("two", "b"))
    assert await output(tmp_path, PROGRAM, gateway) == {
        "chat": "one two three four",
        "streamed": "one two three four",
        "response": ["commentary", "final_answer"],
        "text": "one two three fourb",
        "retrieved": "one two three fourb",
    }


@pytest.mark.slow
async def test_the_helper_of_npm_accumulates_a_response_whose_first_attempts_have_failed(
    gateway: GatewayServer, tmp_path: Path
) -> None:
    failures = [{"status": 503}, {"text": "Nothing of this remains. " * 8, "cut": 150}]
    gateway.env.script(line("one", {"text": "one two three four", "before": failures}))
    whole = {"text": "one two three four", "output": "one two three four"}
    assert await output(tmp_path, STREAMED, gateway) == [whole, whole]
