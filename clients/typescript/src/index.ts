/** A client of Baton: starts runs of teams and agents with an application's Temporal client, and controls them. */

import { randomUUID } from "node:crypto";
import {
  ApplicationFailure,
  CancelledFailure,
  type Client,
  QueryNotRegisteredError,
  WorkflowFailedError,
  type WorkflowHandle,
  WorkflowNotFoundError,
  WorkflowUpdateFailedError,
} from "@temporalio/client";
import type { ApproveRequest, PendingDecision, PersonDecision, Protocol, QuerySpec, Status } from "./protocol.js";

export type * from "./protocol.js";

type WorkflowType = keyof Protocol["workflows"];
type Updates = Protocol["updates"];
type Signals = Protocol["signals"];

/** A text, or a value that is sent as JSON. */
export type Input = string | object;

/** Options of a run. All are optional. */
export interface StartOptions {
  /** The workflow id. The default is the target's name with a random suffix. */
  id?: string;
  /** The task queue of Baton's workers. The default is that of the client. */
  taskQueue?: string;
  /** The namespace of the manifests; not that of Temporal. */
  namespace?: string;
  /** Values for the templates of the manifests. */
  parameters?: Record<string, string>;
  /** The initial values of the session. */
  session?: Record<string, unknown>;
  /** The time limit of the run, such as `5m`. */
  timeout?: string;
  /** Limits of the run, such as `{ tokens: 20_000 }`. */
  budget?: NonNullable<QuerySpec["budget"]>;
  /** The id of the conversation that the run continues. */
  conversation?: string;
  /** The ServiceAccount whose rights the run has. */
  serviceAccount?: string;
  /** Inline manifests. */
  resources?: Record<string, unknown>[];
}

/** Options of a run whose answer is JSON; `output` converts it, and throws if it has another shape (`Schema.parse`). */
export interface TypedOptions<T> extends StartOptions {
  output: (value: unknown) => T;
}

/** The end of a completed run. `value` is the answer: a text, or what `output` has made of its JSON. */
export interface Result<T> {
  id: string;
  value: T;
  message: string;
  status: Status;
}

/** A run failed, was canceled, or was closed by Temporal: then `status` is undefined and `cause` is Temporal's error. */
export class RunFailed extends Error {
  override readonly name = "RunFailed";

  constructor(
    readonly id: string,
    readonly status: Status | undefined,
    override readonly cause: unknown,
  ) {
    super(`the run ${id} ${describe(status, cause)}`);
  }

  /** Whether the run was canceled. */
  get isCanceled(): boolean {
    return this.status?.phase === "Canceled" || this.cause instanceof CancelledFailure;
  }
}

function describe(status: Status | undefined, cause: unknown): string {
  if (status === undefined) return `was closed: ${cause instanceof Error ? cause.message : "no reason given"}`;
  if (status.phase === "Canceled") return `was canceled: ${status.note ?? "no reason given"}`;
  return `failed: ${status.error ?? "no reason given"}`;
}

/** A run rejected a message, a decision or a change of its session; the message says why. */
export class Refused extends Error {
  override readonly name = "Refused";
}

/** Starts runs, on the task queue of Baton's workers, with the client of an application. */
export class Baton {
  constructor(
    readonly client: Client,
    readonly taskQueue: string = "baton",
  ) {}

  /** Starts a run of a team. */
  startTeam(team: string, input: Input, options?: StartOptions): Promise<Run<string>>;
  startTeam<T>(team: string, input: Input, options: TypedOptions<T>): Promise<Run<T>>;
  startTeam<T>(team: string, input: Input, options: StartOptions | TypedOptions<T> = {}): Promise<Run<string | T>> {
    return this.startTarget("team", team, input, options);
  }

  /** Starts a run of an agent. */
  startAgent(agent: string, input: Input, options?: StartOptions): Promise<Run<string>>;
  startAgent<T>(agent: string, input: Input, options: TypedOptions<T>): Promise<Run<T>>;
  startAgent<T>(agent: string, input: Input, options: StartOptions | TypedOptions<T> = {}): Promise<Run<string | T>> {
    return this.startTarget("agent", agent, input, options);
  }

  /** Runs a team to its end. Throws `RunFailed`. */
  runTeam(team: string, input: Input, options?: StartOptions): Promise<Result<string>>;
  runTeam<T>(team: string, input: Input, options: TypedOptions<T>): Promise<Result<T>>;
  async runTeam<T>(
    team: string,
    input: Input,
    options: StartOptions | TypedOptions<T> = {},
  ): Promise<Result<string | T>> {
    return (await this.startTarget("team", team, input, options)).result();
  }

  /** Runs an agent to its end. Throws `RunFailed`. */
  runAgent(agent: string, input: Input, options?: StartOptions): Promise<Result<string>>;
  runAgent<T>(agent: string, input: Input, options: TypedOptions<T>): Promise<Result<T>>;
  async runAgent<T>(
    agent: string,
    input: Input,
    options: StartOptions | TypedOptions<T> = {},
  ): Promise<Result<string | T>> {
    return (await this.startTarget("agent", agent, input, options)).result();
  }

  /** Starts any workflow type of Baton with its own input. */
  async start<N extends WorkflowType>(
    type: N,
    input: Protocol["workflows"][N]["input"],
    options: { id: string; taskQueue?: string; memo?: Record<string, unknown>; summary?: string },
  ): Promise<Run<string>> {
    const handle = await this.client.workflow.start(type, {
      args: [input],
      workflowId: options.id,
      taskQueue: options.taskQueue ?? this.taskQueue,
      // How long a run waits if its worker crashes during a workflow task. Temporal's default is 10 s.
      workflowTaskTimeout: "4s",
      ...(options.memo === undefined ? {} : { memo: options.memo }),
      ...(options.summary === undefined ? {} : { staticSummary: options.summary }),
    });
    return new Run(this.client, handle, asText);
  }

  /** A run that was started before, or elsewhere. */
  run(id: string): Run<string>;
  run<T>(id: string, output: (value: unknown) => T): Run<T>;
  run<T>(id: string, output?: (value: unknown) => T): Run<string | T> {
    return new Run<string | T>(this.client, this.client.workflow.getHandle(id), fromStatus(output));
  }

  private async startTarget<T>(
    type: "team" | "agent",
    name: string,
    input: Input,
    options: StartOptions | TypedOptions<T>,
  ): Promise<Run<string | T>> {
    const parameters = Object.entries(options.parameters ?? {});
    const spec: QuerySpec = {
      input: typeof input === "string" ? input : JSON.stringify(input),
      targets: [{ type, name }],
      ...(parameters.length > 0 ? { parameters: parameters.map(([key, value]) => ({ name: key, value })) } : {}),
      ...(options.timeout === undefined ? {} : { timeout: options.timeout }),
      ...(options.budget === undefined ? {} : { budget: options.budget }),
      ...(options.conversation === undefined ? {} : { conversationId: options.conversation }),
      ...(options.serviceAccount === undefined ? {} : { serviceAccount: options.serviceAccount }),
    };
    const query: Protocol["workflows"]["query"]["input"] = {
      name,
      spec,
      ...(options.namespace === undefined ? {} : { namespace: options.namespace }),
      ...(options.session === undefined ? {} : { session: options.session }),
      ...(options.resources === undefined ? {} : { resources: options.resources }),
    };
    const started = await this.start("query", query, {
      id: options.id ?? `${name}-${randomUUID().slice(0, 6)}`,
      ...(options.taskQueue === undefined ? {} : { taskQueue: options.taskQueue }),
      memo: { query: name, namespace: options.namespace ?? "default" },
      summary: `${type} ${name}`,
    });
    return new Run<string | T>(this.client, started.handle, fromStatus("output" in options ? options.output : undefined));
  }
}

function fromStatus<T>(output: ((value: unknown) => T) | undefined): (status: Status) => string | T {
  // A long answer has no `value`: see the field in the protocol.
  return output ? (status) => output(status.value ?? JSON.parse(asText(status))) : asText;
}

function asText(status: Status): string {
  return status.message ?? "";
}

/** A run. It goes on whether or not a program holds this object. */
export class Run<T = string> {
  constructor(
    private readonly client: Client,
    readonly handle: WorkflowHandle,
    private readonly valueOf: (status: Status) => T,
  ) {}

  /** The workflow id. */
  get id(): string {
    return this.handle.workflowId;
  }

  /** Waits for the end of the run. Throws `RunFailed`, and what `output` throws. */
  async result(): Promise<Result<T>> {
    let status: Status;
    try {
      status = (await this.handle.result()) as Status;
    } catch (error) {
      if (!(error instanceof WorkflowFailedError)) throw error;
      throw new RunFailed(this.id, statusIn(error.cause), error.cause);
    }
    return { id: this.id, value: this.valueOf(status), message: asText(status), status };
  }

  /** The current status of this run, open or closed. A worker answers it. Child runs have their own. */
  status(): Promise<Status> {
    return this.handle.query<Status>("status");
  }

  /** What waits for an approval, in this run and in the runs below it, the oldest first. */
  async approvals(): Promise<PendingDecision[]> {
    return (await this.pending()).filter(({ kind = "approval" }) => kind === "approval" || kind === "budget");
  }

  /** Questions to people, in this run and in the runs below it, the oldest first. */
  async inbox(): Promise<PendingDecision[]> {
    return (await this.pending()).filter((decision) => decision.kind === "question");
  }

  /** Approves the call with that id, with its own or with other arguments. Throws `Refused`. */
  approve(call: string, options: Omit<ApproveRequest, "call" | "approved"> = {}): Promise<PersonDecision> {
    return this.decide("approve", call, { ...options, call, approved: true });
  }

  /** Rejects the call with that id; the model receives the reason. Throws `Refused`. */
  reject(call: string, options: Pick<ApproveRequest, "reason" | "remember" | "by"> = {}): Promise<PersonDecision> {
    return this.decide("approve", call, { ...options, call, approved: false });
  }

  /** Replies to the question with the id `to`. Throws `Refused`, also if the reply does not match its schema. */
  reply(text: string, to: string, options: { by?: string; declines?: boolean } = {}): Promise<PersonDecision> {
    return this.decide("reply", to, { ...options, text, to });
  }

  /** Sends a message to the next speaker. Throws `Refused`. */
  async steer(text: string, name?: string): Promise<void> {
    await update(this.handle, "steer", name === undefined ? { text } : { text, name });
  }

  /** Changes values of the session; null removes one. Returns all values. Throws `Refused`. */
  session(changes: Record<string, unknown>): Promise<Record<string, unknown>> {
    return update(this.handle, "session", changes);
  }

  /** Pauses the run and its children before their next model call. Throws `Refused` if the run has ended. */
  pause(name?: string): Promise<void> {
    return this.signal("pause", name === undefined ? {} : { name });
  }

  /** Resumes a paused run. Throws `Refused` if the run has ended. */
  resume(name?: string): Promise<void> {
    return this.signal("resume", name === undefined ? {} : { name });
  }

  /** Ends the run after the current turn, or `now`: it completes with what was said. Throws `Refused` if it has ended. */
  terminateTeam(reason = "", options: { now?: boolean } = {}): Promise<void> {
    return this.signal("terminate_team", { ...options, reason });
  }

  /** Cancels the run at once. Throws `Refused` if the run has ended. */
  cancel(reason = ""): Promise<void> {
    return this.signal("cancel", { reason });
  }

  private async signal<N extends keyof Signals>(name: N, value: Signals[N]): Promise<void> {
    await refusedAfterItsEnd(this.id, () => this.handle.signal(name, value));
  }

  private async pending(): Promise<PendingDecision[]> {
    const decisions = await pendingIn(this.client, this.handle);
    return decisions.sort((one, other) => Date.parse(one.since) - Date.parse(other.since));
  }

  /** Sends a decision to the run that waits for it, which may be below this one. */
  private async decide<N extends "approve" | "reply">(
    name: N,
    id: string,
    decision: Updates[N]["argument"],
  ): Promise<PersonDecision> {
    const waiting = (await this.pending()).find((pending) => pending.id === id);
    const handle = waiting ? this.client.workflow.getHandle(waiting.run) : this.handle;
    return update(handle, name, decision);
  }
}

async function pendingIn(client: Client, handle: WorkflowHandle): Promise<PendingDecision[]> {
  const status = await handle.query<Status>("status");
  const children = (status.waitingRuns ?? []).map((id) => pendingBelow(client, client.workflow.getHandle(id)));
  return [...(status.pendingDecisions ?? []), ...(await Promise.all(children)).flat()];
}

/** The same of a run below; one that has just ended, or is gone, has none. */
async function pendingBelow(client: Client, handle: WorkflowHandle): Promise<PendingDecision[]> {
  try {
    return await pendingIn(client, handle);
  } catch (error) {
    if (error instanceof WorkflowNotFoundError || error instanceof QueryNotRegisteredError) return [];
    throw error;
  }
}

async function update<N extends keyof Updates>(
  handle: WorkflowHandle,
  name: N,
  argument: Updates[N]["argument"],
): Promise<Updates[N]["result"]> {
  return refusedAfterItsEnd(handle.workflowId, async () => {
    try {
      return await handle.executeUpdate<Updates[N]["result"], [Updates[N]["argument"]]>(name, { args: [argument] });
    } catch (error) {
      if (!(error instanceof WorkflowUpdateFailedError)) throw error;
      throw new Refused(error.cause?.message ?? error.message, { cause: error.cause });
    }
  });
}

async function refusedAfterItsEnd<R>(id: string, send: () => Promise<R>): Promise<R> {
  try {
    return await send();
  } catch (error) {
    if (!(error instanceof WorkflowNotFoundError)) throw error;
    throw new Refused(`the run ${id} has ended, or does not exist`, { cause: error });
  }
}

/** The status in the details of the failure of a run. */
function statusIn(cause: unknown): Status | undefined {
  if (!(cause instanceof ApplicationFailure || cause instanceof CancelledFailure)) return undefined;
  const detail: unknown = cause.details?.[0];
  return typeof detail === "object" && detail !== null && "phase" in detail ? (detail as Status) : undefined;
}
