/**
 * A worker with the activities of the payments department. It knows nothing of Baton: the Tool `pay-claim` in
 * samples/application/teams/settlement.yaml names the activity and its task queue.
 */

import { activityInfo } from "@temporalio/activity";
import { NativeConnection, Worker } from "@temporalio/worker";

interface Payment {
  amount: number;
  reason: string;
}

interface Receipt {
  paid: string;
  reference: string;
}

async function payClaim({ amount }: Payment): Promise<Receipt> {
  const { workflowExecution, activityId } = activityInfo();
  // All attempts of a call have the same reference, by which a bank recognizes a payment that it has made already.
  return { paid: `${amount} EUR`, reference: `${workflowExecution?.runId}/${activityId}` };
}

async function main(): Promise<void> {
  const connection = await NativeConnection.connect({ address: process.env["TEMPORAL_ADDRESS"] ?? "localhost:7233" });
  const namespace = process.env["TEMPORAL_NAMESPACE"] ?? "default";
  const worker = await Worker.create({ connection, namespace, taskQueue: "payments", activities: { payClaim } });
  await worker.run();
}

main().catch((error: unknown) => {
  console.error(error);
  process.exitCode = 1;
});
