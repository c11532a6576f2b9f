/** The client against a Temporal server and a worker of Baton: tests/starter/test_typescript.py starts them. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { setTimeout } from "node:timers/promises";
import { Client, Connection } from "@temporalio/client";
import { Baton, type PendingDecision, Refused, type Run, RunFailed } from "./index.js";

interface Decision {
  approved: boolean;
  amount: number;
}

function decision(value: unknown): Decision {
  assert(typeof value === "object" && value !== null && "approved" in value && "amount" in value);
  return value as Decision;
}

let connection: Connection;
let baton: Baton;

before(async () => {
  connection = await Connection.connect({ address: process.env["TEMPORAL_ADDRESS"] ?? "localhost:7233" });
  baton = new Baton(new Client({ connection }), process.env["BATON_TASK_QUEUE"] ?? "baton");
});

after(() => connection.close());

async function waiting<T>(run: Run<T>, kind: "approvals" | "inbox"): Promise<PendingDecision> {
  for (;;) {
    const [first] = await run[kind]();
    if (first) return first;
    await setTimeout(50);
  }
}

test("a team is started, looked at, steered and approved, and has a typed result", async () => {
  const run = await baton.startTeam("claims", { claim: "My bicycle was stolen." }, { output: decision });
  const call = await waiting(run, "approvals");
  assert.equal(call.tool, "pay");
  assert.deepEqual(JSON.parse(call.arguments ?? ""), { amount: 120 });
  const status = await run.status();
  assert.equal(status.phase, "InputRequired");
  await run.steer("Be brief.", "dana"); // the adjuster approves only if it has read this
  assert.deepEqual(await run.session({ urgent: true }), { urgent: true });
  await assert.rejects(run.approve("no-such-call"), Refused);
  const taken = await run.approve(call.id, { arguments: { amount: 100 }, by: "dana" });
  assert.equal(taken.by, "dana");
  await assert.rejects(run.approve(call.id), Refused);
  const result = await run.result();
  const amount: number = result.value.amount;
  assert.deepEqual([result.value.approved, amount], [true, 100]);
  assert.equal(result.status.phase, "Completed");
  assert.equal(result.status.tokenUsage.toolCalls, 1);
  await assert.rejects(run.steer("Too late."), Refused);
});

test("the reason of a rejection is read by the model", async () => {
  const run = await baton.startTeam("claims", "A lamp.", { id: `claims-rejected-${process.pid}`, output: decision });
  const call = await waiting(baton.run(run.id), "approvals");
  await run.reject(call.id, { reason: "It was not locked." });
  assert.deepEqual((await run.result()).value, { approved: false, amount: 0 });
});

test("a budget that is used up is among what waits for an approval, a call of a client's tool is not", async () => {
  const run = await baton.startTeam("circle", "Go on.", { budget: { modelCalls: 1, onExceeded: "ask" } });
  const budget = await waiting(run, "approvals");
  assert.equal(budget.kind, "budget");
  await run.reject(budget.id, { by: "dana" });
  assert.equal((await run.result()).status.stopReason, "budget");
  const brings = { tools: [{ name: "open_file", parameters: { type: "object" } }] };
  const edited = await baton.start(
    "query",
    { spec: { input: "Hello?", targets: [{ type: "agent", name: "editor" }], client: brings } },
    { id: `edited-${process.pid}` },
  );
  let call: PendingDecision | undefined;
  while (!(call = (await edited.status()).pendingDecisions?.[0])) await setTimeout(50);
  assert.equal(call.kind, "client_tool");
  assert.deepEqual(await edited.approvals(), []);
  await edited.cancel("looked at");
});

test("a person's reply is the turn of a member", async () => {
  const run = await baton.startTeam("interview", "Who are you?");
  const question = await waiting(run, "inbox");
  await run.reply("I am Dana.", question.id, { by: "dana" });
  assert.equal((await run.result()).value, "I am Dana.");
});

test("an agent answers with a text", async () => {
  const result = await baton.runAgent("talker", "Hello?", { timeout: "5m", budget: { tokens: 10_000 } });
  assert.equal(result.value, "Hm.");
});

test("a workflow type of a strategy is started with its own input", async () => {
  const id = `circle-${process.pid}`;
  const run = await baton.start("round-robin", { team: "circle", input: "Go on." }, { id });
  await run.pause("dana");
  while ((await run.status()).paused?.by !== "dana") await setTimeout(50);
  await run.resume();
  await run.terminateTeam("enough");
  const { status } = await run.result();
  assert.deepEqual([status.phase, status.stopReason, status.note], ["Completed", "terminated", "enough"]);
  await assert.rejects(run.pause(), Refused);
});

test("a failed run has the type of its error and its status", async () => {
  const failed = await baton.runAgent("locked-out", "Hello?").catch((error: unknown) => error);
  assert(failed instanceof RunFailed);
  assert.equal(failed.status?.failure?.type, "KeyRefused");
  assert.equal(failed.status?.failure?.family, "AuthenticationError");
  assert.equal(failed.status?.phase, "Failed");
  assert(!failed.isCanceled);
  assert.match(failed.message, /^the run locked-out-\w+ failed: /);
});

test("a canceled run has its status, and the reason", async () => {
  const run = await baton.startTeam("circle", "Go on.");
  while ((await run.status()).responses?.[0]?.run === undefined) await setTimeout(50);
  await run.cancel("no time");
  const canceled = await run.result().catch((error: unknown) => error);
  assert(canceled instanceof RunFailed);
  assert(canceled.isCanceled);
  assert.deepEqual([canceled.status?.phase, canceled.status?.note], ["Canceled", "no time"]);
});

test("a run that Temporal terminated has no status", async () => {
  const run = await baton.startTeam("circle", "Go on.");
  await run.handle.terminate("an operator's reason");
  const closed = await run.result().catch((error: unknown) => error);
  assert(closed instanceof RunFailed);
  assert.equal(closed.status, undefined);
  assert(!closed.isCanceled);
});
