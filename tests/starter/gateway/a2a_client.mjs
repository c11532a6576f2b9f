// Asks the team `duo` and the team `desk` of a gateway with the JavaScript SDK: node a2a_client.mjs URL 1.0|0.3
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";

const [url, version] = process.argv.slice(2);

async function current(binding) {
  const { ClientFactory, ClientFactoryOptions } = await import("a2a/client");
  const { Role, TaskState } = await import("a2a");
  const options = ClientFactoryOptions.createFrom(ClientFactoryOptions.default, { preferredTransports: [binding] });
  const factory = new ClientFactory(options);
  const message = (content, task) => ({
    messageId: randomUUID(),
    contextId: "",
    taskId: task ?? "",
    role: Role.ROLE_USER,
    parts: [{ content, metadata: undefined, filename: "", mediaType: "" }],
    metadata: undefined,
    extensions: [],
    referenceTaskIds: [],
  });
  const request = (sent) => ({ tenant: "", message: sent, configuration: undefined, metadata: undefined });

  const duo = await factory.createFromUrl(`${url}/a2a/team/duo/`);
  const said = [];
  let task;
  let last;
  for await (const event of duo.sendMessageStream(request(message({ $case: "text", value: "Why?" })))) {
    const { $case, value } = event.payload;
    if ($case === "task") task = value.id;
    if ($case === "statusUpdate") {
      last = value.status.state;
      said.push(...(value.status.message?.parts ?? []).map((part) => part.content.value));
    }
  }
  assert.deepEqual(said, ["a", "b"]);
  assert.equal(last, TaskState.TASK_STATE_COMPLETED);
  const done = await duo.getTask({ tenant: "", id: task, historyLength: undefined });
  assert.equal(done.artifacts[0].parts[0].content.value, "b");
  await assert.rejects(duo.getTask({ tenant: "", id: "none", historyLength: undefined }), /no run/);
  await assert.rejects(duo.cancelTask({ tenant: "", id: task, metadata: undefined }), /ended/);

  const desk = await factory.createFromUrl(`${url}/a2a/team/desk/`);
  const waiting = await desk.sendMessage(request(message({ $case: "text", value: "Buy." })));
  assert.equal(waiting.status.state, TaskState.TASK_STATE_INPUT_REQUIRED);
  const { id } = waiting.status.message.parts[1].content.value.pending[0];
  const approved = await desk.sendMessage(request(message({ $case: "data", value: { approve: id } }, waiting.id)));
  assert.equal(approved.artifacts[0].parts[0].content.value, "Ordered.");
}

async function old() {
  const { A2AClient } = await import("a2a-old/client");
  const message = (part, taskId) => ({
    message: { kind: "message", messageId: randomUUID(), role: "user", parts: [part], ...(taskId ? { taskId } : {}) },
  });
  const duo = await A2AClient.fromCardUrl(`${url}/a2a/team/duo/.well-known/agent-card.json`);
  const said = [];
  let task;
  let last;
  for await (const event of duo.sendMessageStream(message({ kind: "text", text: "Why?" }))) {
    if (event.kind === "task") task = event.id;
    if (event.kind === "status-update") {
      last = event;
      said.push(...(event.status.message?.parts ?? []).map((part) => part.text));
    }
  }
  assert.deepEqual(said, ["a", "b"]);
  assert.deepEqual([last.status.state, last.final], ["completed", true]);
  const done = await duo.getTask({ id: task });
  assert.equal(done.result.artifacts[0].parts[0].text, "b");
  assert.equal((await duo.getTask({ id: "none" })).error.code, -32001);
  assert.equal((await duo.cancelTask({ id: task })).error.code, -32002);

  const desk = await A2AClient.fromCardUrl(`${url}/a2a/team/desk/.well-known/agent-card.json`);
  const waiting = (await desk.sendMessage(message({ kind: "text", text: "Buy." }))).result;
  assert.equal(waiting.status.state, "input-required");
  const { id } = waiting.status.message.parts[1].data.pending[0];
  const ended = (await desk.sendMessage(message({ kind: "data", data: { approve: id } }, waiting.id))).result;
  assert.equal(ended.artifacts[0].parts[0].text, "Ordered.");
}

if (version === "0.3") {
  await old();
} else {
  await current("JSONRPC");
  await current("HTTP+JSON");
}
console.log("passed");
