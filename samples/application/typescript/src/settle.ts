/** A client that asks the team `settlement` about a claim, and approves the payment if it is small. */

import { setTimeout } from "node:timers/promises";
import { Client, Connection } from "@temporalio/client";
import { Baton } from "baton-client";

interface Settlement {
  settled: boolean;
  amount: number;
}

const SMALL = 1_000;

async function main(): Promise<void> {
  const connection = await Connection.connect({ address: process.env["TEMPORAL_ADDRESS"] ?? "localhost:7233" });
  const client = new Client({ connection, namespace: process.env["TEMPORAL_NAMESPACE"] ?? "default" });
  const baton = new Baton(client, process.env["BATON_TASK_QUEUE"] ?? "baton");

  const run = await baton.startTeam("settlement", process.argv[2] ?? "My bicycle was stolen.", {
    output: (value) => value as Settlement,
  });
  let isOpen = true;
  const result = run.result().finally(() => (isOpen = false));
  while (isOpen) {
    for (const call of await run.approvals()) {
      const payment = JSON.parse(call.arguments ?? "{}") as { amount: number };
      if (payment.amount <= SMALL) await run.approve(call.id, { by: "settle.ts" });
      else await run.reject(call.id, { reason: `More than ${SMALL} EUR need a second signature.`, by: "settle.ts" });
    }
    await Promise.race([result, setTimeout(500)]);
  }
  const { value } = await result;
  console.log(value.settled ? `paid ${value.amount} EUR` : "not paid");
  await connection.close();
}

main().catch((error: unknown) => {
  console.error(error);
  process.exitCode = 1;
});
