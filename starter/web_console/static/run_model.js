/**
 * The conversation that the events of a run make: runs with their items, in order.
 *
 * An item is a round, a turn, a message, a wait, or something that was done to the run. A turn has steps: calls of
 * models with their text, calls of tools, child runs and waits. Events may begin anywhere in the run: what began before
 * is then `partial`. The items keep their identity, and `version` counts the changes of an item.
 */

const PLACE = /\/(?:turn-(\d+)|round-(\d+)\/([^/]+))\/([^/]*)$/;

export class RunModel {
  constructor(id) {
    this.id = id;
    this.runs = new Map();
    this.items = []; // of the run itself and of its targets, as they came
    this.members = new Map();
    this.waits = new Map();
    this.live = new Map();
    this.edges = [];
    this.ways = new Map();
    this.end = null;
    this.from = null;
    this.to = null;
    this.version = 0;
  }

  /** The run with a path; one that began before the first event is made up. */
  run(path) {
    let run = this.runs.get(path);
    if (!run) {
      const parentPath = parentOf(path, this.id);
      run = { path, items: [], turns: [], calls: new Map(), parent: null, place: null, team: null, kind: null, name: lastPart(path) };
      this.runs.set(path, run);
      if (parentPath) {
        run.parent = this.run(parentPath);
        run.place = this.placeOf(run);
        if (run.place) {
          run.place.children.push(run);
          touch(run.place);
        }
      }
    }
    return run;
  }

  /** The turn or the call of a tool in which a child run runs; null for the target of a query. */
  placeOf(run) {
    const parent = run.parent;
    if (parent.path === this.id && run.path.startsWith(`${this.id}/target-`)) return null;
    const [, turn, round, part, name] = PLACE.exec(run.path) ?? [];
    if (turn || round) {
      const own = parent.turns.findLast((item) => (
        turn ? item.turn === Number(turn) : item.round === Number(round) && (item.part === part || /^\d+$/.test(part))
      ) && !item.children.some((child) => child.path === run.path));
      if (own) return own;
      return this.addTurn(parent, { speaker: name, turn: turn && Number(turn), round: round && Number(round), kind: "team" }, true);
    }
    const open = parent.turns.findLast((item) => !item.ended) ?? parent.turns.at(-1);
    return open ?? this.addTurn(parent, { speaker: parent.name, kind: "agent" }, true);
  }

  /** Adds an item to a run, at its end or in front of another item. */
  add(run, item, next = null) {
    item.version = 0;
    item.run = run;
    const insert = (items) => items.splice(next ? items.lastIndexOf(next) : items.length, 0, item);
    insert(run.items);
    const isShown = run.path === this.id || (run.parent?.path === this.id && !run.place);
    if (isShown) insert(this.items);
    else touch(run.place);
    return item;
  }

  addTurn(run, event, isPartial = false) {
    const turn = {
      type: "turn", key: event.id ?? `${run.path}/partial-${run.items.length}`, at: event.at, speaker: event.speaker,
      kind: event.kind, turn: event.turn, round: event.round, part: event.part, stance: event.stance, fn: event.function,
      hidden: event.hidden, steps: [], children: [], partial: isPartial, ended: null, text: null, outcome: null,
    };
    run.turns.push(turn);
    return this.add(run, turn);
  }

  /** The open turn of a speaker; one that began before the first event is made up. */
  turnOf(run, event, speaker = event.speaker) {
    const open = run.turns.findLast((turn) => turn.speaker === speaker && !turn.ended);
    if (open) return open;
    const last = run.turns.at(-1);
    if (last && !last.ended) return last;
    return this.addTurn(run, { ...event, id: `${event.id}/turn`, kind: "agent", speaker: speaker ?? run.name }, true);
  }

  step(turn, step) {
    turn.steps.push(step);
    touch(turn);
    step.owner = turn;
    return step;
  }

  /** Something that happened in the run, in one line; within a turn of it, if that is open. */
  note(run, event, note) {
    return this.add(run, { type: "note", key: event.id, at: event.at, ...note });
  }

  apply(event) {
    this.version += 1;
    if (!event.type.startsWith("text.")) {
      this.from ??= event.at;
      this.to = event.at;
    }
    const run = this.run(event.run);
    if (event.team && !run.team) run.team = event.team;
    HANDLERS[event.type]?.(this, run, event);
  }
}

/** Tells an item, and all in which it is shown, that it has changed. */
function touch(item) {
  for (let place = item; place; place = place.run?.place) {
    place.version += 1;
    if (place.owner) place = place.owner;
  }
}

function lastPart(path) {
  return path.slice(path.lastIndexOf("/") + 1);
}

/** The path of the run above, of which the path of a child run is made: `PARENT/turn-2/NAME`. */
function parentOf(path, root) {
  if (path === root) return null;
  const above = path.replace(/\/(?:round-\d+\/[^/]+|[^/]+)\/[^/]*$/, "");
  return above.length < path.length && above.length >= root.length ? above : root;
}

/** What a speaker has used, in all teams: its own calls, as the gateway's `/runs/ID/members` sums them up. */
function member(model, name, part) {
  let known = model.members.get(name);
  if (!known) model.members.set(name, known = { name, part, turns: 0, tokens: 0, calls: 0, toolCalls: 0, cost: null, seconds: 0, speaking: 0 });
  return known;
}

function addUsage(known, usage) {
  if (!usage) return;
  known.tokens += usage.totalTokens ?? 0;
  known.calls += usage.modelCalls ?? 0;
  if (usage.cost !== undefined && usage.cost !== null) known.cost = (known.cost ?? 0) + usage.cost;
}

/** The open call of an event; calls in later executions of the run may have the ids of earlier ones. */
function callStep(model, run, event) {
  const known = run.calls.get(event.call);
  if (known?.isOpen) return known;
  const turn = event.speaker === "selector" && !run.turns.some((each) => !each.ended && each.speaker === "selector")
    ? selectorTurn(model, run, event) : model.turnOf(run, event);
  const step = model.step(turn, {
    type: "model", key: `${event.run}/${event.call}`, at: event.at, call: event.call, speaker: event.speaker, model: event.model,
    text: null, written: "", isOpen: true, tools: [], attempts: [], hidden: event.hidden,
  });
  run.calls.set(event.call, step);
  return step;
}

function selectorTurn(model, run, event) {
  return model.addTurn(run, { ...event, id: `${event.id}/selector`, kind: "selector", turn: undefined });
}

function toolStep(model, run, event) {
  const known = run.calls.get(event.call);
  if (known?.isOpen) return known;
  const step = model.step(model.turnOf(run, event), {
    type: "tool", key: `${event.run}/${event.call}`, at: event.at, tool: event.tool, arguments: event.arguments, written: "", isOpen: true, attempts: [],
  });
  run.calls.set(event.call, step);
  return step;
}

function endCall(step, event) {
  step.isOpen = false;
  step.endedAt = event.at;
  step.seconds = event.seconds;
  step.count = event.attempts;
  step.error = event.error;
  touch(step.owner);
}

/** Marks what a run has done after the place to which it was reset: that is done again, maybe otherwise. */
function discard(model, run, { since, at }) {
  const isLater = (time) => Date.parse(time) > Date.parse(since);
  for (const item of run.items) {
    if (!isLater(item.at)) continue;
    item.isVoid = true;
    touch(item);
  }
  for (const turn of run.turns) {
    for (const step of turn.steps) {
      if (isLater(step.at)) step.isVoid = true;
      if (step.isVoid && step.isOpen) step.isOpen = false;
    }
    if (turn.isVoid && !turn.ended) {
      turn.ended = at;
      if (model.members.has(turn.speaker)) model.members.get(turn.speaker).speaking = 0;
    }
    if (!turn.isVoid && turn.ended && isLater(turn.ended)) Object.assign(turn, { ended: null, text: null, outcome: null, error: null });
    touch(turn);
  }
  for (const [key, wait] of model.waits) {
    if (wait.event.run !== run.path || !isLater(wait.at)) continue;
    wait.ended = { outcome: "discarded" };
    model.waits.delete(key);
    touch(wait.owner ?? wait);
  }
  if (run.ended && isLater(run.ended.at)) run.ended = null;
}

const HANDLERS = {
  "run.started"(model, run, event) {
    Object.assign(run, { kind: event.kind, name: event.name, strategy: event.strategy, namespace: event.namespace, at: event.at });
    if (run.place) touch(run.place);
    else if (run.parent) model.note(run, event, { sign: "▸", what: "started", kind: event.kind, name: event.name, strategy: event.strategy });
  },
  "run.ended"(model, run, event) {
    run.ended = event;
    run.calls.forEach((step) => { step.isOpen = false; });
    for (const turn of run.turns) {
      if (turn.ended) continue;
      turn.ended = event.at;
      if (model.members.has(turn.speaker)) model.members.get(turn.speaker).speaking = 0;
    }
    if (run.path === model.id) {
      model.end = event;
      model.add(run, { type: "end", key: event.id, at: event.at, event });
    } else if (run.place) touch(run.place);
    else model.note(run, event, { what: "ended", event });
  },
  "run.retried"(model, run, event) { model.note(run, event, { what: "retried" }); },
  "run.reset"(model, run, event) {
    for (const each of model.runs.values()) {
      if (each === run || each.path.startsWith(`${run.path}/`)) discard(model, each, event);
    }
    if (run.path === model.id) model.end = null;
    model.note(run, event, { what: "reset", since: event.since });
  },
  "notice"(model, run, event) { model.note(run, event, { what: "notice", text: event.text }); },
  "round.started"(model, run, event) {
    model.add(run, { type: "round", key: event.id, at: event.at, round: event.round, max: event.maxRounds });
  },
  "turn.started"(model, run, event) {
    const before = run.turns.findLast((turn) => turn.kind !== "selector");
    const turn = model.addTurn(run, event);
    if (event.kind !== "team") {
      const known = member(model, event.speaker, event.part);
      known.turns += 1;
      known.speaking += 1;
    }
    if (!run.place && before && !event.part) {
      const way = `${before.speaker}\n${event.speaker}`;
      model.ways.set(way, (model.ways.get(way) ?? 0) + 1);
    }
    return turn;
  },
  "turn.ended"(model, run, event) {
    const turn = model.turnOf(run, event);
    Object.assign(turn, { ended: event.at, outcome: event.outcome, seconds: event.seconds, usage: event.usage, error: event.error });
    if (event.text) turn.text = event.text;
    touch(turn);
    if (turn.kind !== "team") {
      const known = member(model, event.speaker, event.part);
      known.speaking = Math.max(0, known.speaking - 1);
      known.seconds += event.seconds ?? 0;
    }
  },
  "model.called"(model, run, event) {
    const step = callStep(model, run, event);
    step.model = event.model;
    touch(step.owner);
  },
  "model.answered"(model, run, event) {
    const step = callStep(model, run, event);
    endCall(step, event);
    step.text = event.text ?? null;
    step.written = "";
    step.tools = event.toolCalls ?? [];
    step.wrong = event.wrong;
    step.isCutOff = event.finishReason === "length";
    step.usage = event.usage;
    step.earlier = event.earlier ?? [];
    step.model = event.model ?? step.model;
    addUsage(member(model, event.speaker), event.usage);
    if (step.owner.kind === "selector") step.owner.ended = event.at;
  },
  "model.failed"(model, run, event) {
    const step = callStep(model, run, event);
    endCall(step, event);
    step.written = "";
    step.isCanceled = !event.error;
    if (step.owner.kind === "selector") step.owner.ended = event.at;
  },
  "text.delta"(model, run, event) {
    const step = run.calls.get(event.call);
    if (!step?.isOpen || event.offset > step.written.length) return;
    step.written = step.written.slice(0, event.offset) + event.text;
    touch(step.owner);
  },
  "text.retracted"(model, run, event) {
    const step = run.calls.get(event.call);
    if (!step) return;
    step.written = "";
    touch(step.owner);
  },
  "attempt.failed"(model, run, event) {
    const step = run.calls.get(event.call);
    if (!step) return;
    step.attempts.push(event);
    step.written = "";
    touch(step.owner);
  },
  "tool.called"(model, run, event) {
    const step = toolStep(model, run, event);
    step.arguments = event.arguments;
  },
  "tool.returned"(model, run, event) {
    const step = toolStep(model, run, event);
    endCall(step, event);
    step.result = event.text ?? null;
    step.ends = event.ends;
    member(model, event.speaker).toolCalls += 1;
  },
  "tool.failed"(model, run, event) {
    const step = toolStep(model, run, event);
    endCall(step, event);
    step.isFailed = true;
    member(model, event.speaker).toolCalls += 1;
  },
  "speaker.selected"(model, run, event) {
    const turn = run.turns.findLast((each) => each.kind === "selector");
    if (turn) {
      turn.chosen = event;
      touch(turn);
    } else model.note(run, event, { what: "selected", speaker: event.speaker, how: event.how });
  },
  "handoff"(model, run, event) { model.note(run, event, { what: "handoff", speaker: event.speaker, receiver: event.receiver }); },
  "conditions.evaluated"(model, run, event) {
    if (event.edge !== undefined && event.edge !== null) model.edges.push(event.edge);
    model.note(run, event, { what: "conditions", ends: event.ends, edge: event.edge });
  },
  "message"(model, run, event) {
    for (const turn of run.turns.slice(-3).reverse()) { // what a turn has said is shown there
      const said = turn.steps.find((step) => step.text === event.text && !step.isTold);
      if (said) {
        said.isTold = true;
        turn.message = event;
        touch(turn);
        return;
      }
    }
    const returned = run.turns.at(-1);
    if (returned && !returned.message && returned.kind === "function" && returned.speaker === event.name) {
      returned.message = event;
      returned.text ??= event.text;
      touch(returned);
      return;
    }
    if (returned && !returned.message && event.part && (event.part !== "contribution" || returned.speaker === event.name)) {
      returned.message = event; // what the panel has read of the answer of a role
      touch(returned);
      return;
    }
    const steered = run.items.findLast((item) => item.type === "steered" && item.text === event.text && !item.readAt);
    const above = steered ?? model.items.findLast((item) => item.type === "steered" && item.text === event.text && !item.readAt);
    if (above) {
      above.readAt = event.at;
      touch(above);
      return;
    }
    if (returned?.kind === "human" && returned.speaker === event.name && !returned.message) {
      returned.message = event;
      returned.text = event.text;
      touch(returned);
      return;
    }
    // What joins the conversation before the answer of a turn comes before the turn: its speaker has read it.
    const isUnsaid = returned && !returned.message && !["failed", "canceled"].includes(returned.outcome);
    const reader = isUnsaid && returned.speaker !== event.name ? returned : null;
    model.add(run, { type: "message", key: event.id, at: event.at, name: event.name, text: event.text, part: event.part, number: event.number }, reader);
  },
  "wait.started"(model, run, event) {
    const wait = { type: "wait", key: event.id, at: event.at, event, ended: null };
    model.waits.set(`${event.run}\n${event.wait}`, wait);
    const turn = run.turns.findLast((each) => !each.ended && (!event.speaker || each.speaker === event.speaker));
    if (turn && event.kind !== "pause") model.step(turn, wait);
    else model.add(run, wait);
  },
  "wait.ended"(model, run, event) {
    const wait = model.waits.get(`${event.run}\n${event.wait}`);
    if (!wait) {
      model.note(run, event, { what: "decided", event });
      return;
    }
    wait.ended = event;
    model.waits.delete(`${event.run}\n${event.wait}`);
    touch(wait.owner ?? wait);
  },
  "steered"(model, run, event) {
    model.add(run, { type: "steered", key: event.id, at: event.at, by: event.by, text: event.text, readAt: null });
  },
  "session.changed"(model, run, event) { model.note(run, event, { what: "session", by: event.by, changes: event.changes }); },
  "stop.requested"(model, run, event) { model.note(run, event, { what: "stop", event }); },
  "memory.read"(model, run, event) { if (event.error) model.note(run, event, { what: "memory", event }); },
  "memory.written"(model, run, event) { if (event.error) model.note(run, event, { what: "memory", event }); },
};
