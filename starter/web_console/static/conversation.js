/** The conversation of a run: its items as articles of a feed, of which only those near the viewport are in the page. */
import { html, useEffect, useLayoutEffect, useReducer, useRef, useState } from "./vendor/htm-preact-standalone.js";
import { Decision, ForkDialog, RunLinks } from "./acts.js";
import { Folded, Money, Speaker, Time, Tokens, Words, count, duration, visible } from "./ui.js";

const MARGIN = 900; // pixels above and below the viewport that are in the page
const ESTIMATES = { round: 56, turn: 150, note: 36, message: 90, wait: 120, steered: 80, end: 80 };
const LONG = 6_000; // characters of a text that are shown until somebody asks for the rest
const FEW = 12; // steps of a turn that are shown until somebody asks for the rest

/** The items of a list near the viewport. `onStart` and `onEnd` are called when its beginning or its end is near. */
export function Windowed({ items, draw, onStart, onEnd, follows, startsAtEnd, target, label, isBusy }) {
  const list = useRef(null);
  const heights = useRef(new Map());
  const anchor = useRef(null);
  const isAtEnd = useRef(startsAtEnd);
  const isNew = useRef(true);
  const [, redraw] = useReducer((number) => number + 1, 0);
  const heightOf = (item) => heights.current.get(item.key) ?? ESTIMATES[item.type] ?? 80;

  // Which items are near the viewport: their indexes, and the heights of what is above and below.
  const top = list.current ? list.current.getBoundingClientRect().top : 0;
  const from = -top - MARGIN;
  const to = -top + innerHeight + MARGIN;
  let above = 0;
  let first = 0;
  while (first < items.length - 1 && above + heightOf(items[first]) < from) above += heightOf(items[first++]);
  let last = first;
  let end = above;
  while (last < items.length && end < to) end += heightOf(items[last++]);
  let below = 0;
  for (let index = last; index < items.length; index += 1) below += heightOf(items[index]);
  const shown = items.slice(first, last);

  const offsetOf = (key) => {
    let offset = 0;
    for (const item of items) {
      if (item.key === key) return offset;
      offset += heightOf(item);
    }
    return null;
  };

  // Heights are measured after each drawing; what the reader looks at stays where it is.
  useLayoutEffect(() => {
    const node = list.current;
    for (const element of node.querySelectorAll(":scope > article")) {
      heights.current.set(element.dataset.key, element.getBoundingClientRect().height);
    }
    const known = anchor.current?.find((each) => items.some((item) => item.key === each.key));
    if (isAtEnd.current && (follows || isNew.current)) {
      const bottom = document.documentElement.scrollHeight - innerHeight;
      if (Math.abs(bottom - scrollY) > 1) scrollTo(0, bottom);
    } else if (known && (node.getBoundingClientRect().top < 0 || known.first !== items[0].key)) {
      const element = node.querySelector(`:scope > article[data-key="${CSS.escape(known.key)}"]`);
      const offset = element ? element.getBoundingClientRect().top : node.getBoundingClientRect().top + (offsetOf(known.key) ?? NaN);
      const moved = offset - known.top;
      if (Math.abs(moved) > 1) scrollBy(0, moved);
    }
    node.firstItem = items[0]?.key;
    remember();
  });

  function remember() {
    const node = list.current;
    if (!node) return;
    anchor.current = [];
    for (const element of node.querySelectorAll(":scope > article")) {
      const { top: place, bottom } = element.getBoundingClientRect();
      if (bottom > 60) anchor.current.push({ key: element.dataset.key, top: place, first: node.firstItem });
      if (place > innerHeight) break;
    }
  }

  useEffect(() => {
    let planned = 0;
    const moved = () => {
      if (planned) return;
      planned = requestAnimationFrame(() => {
        planned = 0;
        isNew.current = false;
        isAtEnd.current = document.documentElement.scrollHeight - innerHeight - scrollY < 80;
        remember();
        redraw();
        const box = list.current.getBoundingClientRect();
        if (box.top > -MARGIN) onStart?.();
        if (box.bottom < innerHeight + MARGIN) onEnd?.();
      });
    };
    addEventListener("scroll", moved, { passive: true });
    addEventListener("resize", moved);
    const observer = new ResizeObserver(moved);
    observer.observe(list.current);
    moved();
    return () => {
      removeEventListener("scroll", moved);
      removeEventListener("resize", moved);
      observer.disconnect();
      cancelAnimationFrame(planned);
    };
  }, [onStart, onEnd]);

  // To an item in the address: what is above it has estimated heights until it is drawn.
  useLayoutEffect(() => {
    if (!target) return;
    const offset = offsetOf(target.key);
    if (offset === null) return;
    isAtEnd.current = false;
    anchor.current = [{ key: target.key, top: 80, first: items[0].key }];
    scrollTo(0, list.current.getBoundingClientRect().top + scrollY + offset - 80);
    redraw();
  }, [target]);

  const onKeyDown = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, [contenteditable]")) return;
    const step = { j: 1, k: -1, ArrowDown: 1, ArrowUp: -1, PageDown: 1, PageUp: -1 }[event.key];
    const article = event.target.closest("article");
    if (!step || !article || (event.key.length > 1 && event.target !== article)) return;
    const articles = [...list.current.querySelectorAll(":scope > article")];
    const next = articles[articles.indexOf(article) + step];
    if (!next) return;
    event.preventDefault();
    next.focus({ preventScroll: true });
    const box = next.getBoundingClientRect();
    if (box.top < 80 || box.bottom > innerHeight) scrollBy(0, box.top - 80);
  };

  return html`
    <div class="feed" role="feed" aria-label=${label} aria-busy=${isBusy ? "true" : "false"} ref=${list} onKeyDown=${onKeyDown}>
      <div style=${{ height: `${above}px` }} aria-hidden="true"></div>
      ${shown.map((item, index) => html`
        <article key=${item.key} data-key=${item.key} class=${`item item-${item.type}${item.isVoid ? " is-void" : ""}`} tabindex="0"
          aria-posinset=${first + index + 1} aria-setsize=${items.length} aria-label=${labelOf(item)}>
          ${draw(item)}
        </article>`)}
      <div style=${{ height: `${below}px` }} aria-hidden="true"></div>
    </div>`;
}

function labelOf(item) {
  if (item.type === "turn") return `${visible(item.speaker)}${item.turn ? `, turn ${item.turn}` : ""}${item.ended ? "" : ", speaking"}${item.isVoid ? ", discarded" : ""}`;
  if (item.type === "round") return `Round ${item.round}`;
  return { note: "Note", message: "Message", wait: "Wait", steered: "Message to the run", end: "End of the run" }[item.type];
}

/** One item of a conversation. `root` is the id of the run, and `decisions` those of the inbox. */
export function Item({ item, root, decisions, onDecided }) {
  const context = { root, decisions, onDecided };
  switch (item.type) {
    case "round":
      return html`<h3 class="round"><span>Round ${item.round}${item.max ? html`<span class="muted"> of ${item.max}</span>` : ""}</span></h3>`;
    case "turn":
      return html`<${Turn} turn=${item} version=${item.version} context=${context} />`;
    case "wait":
      return html`<${Wait} wait=${item} context=${context} />`;
    case "steered":
      return html`
        <div class="bubble">
          <p class="turn-head"><${Speaker} name=${item.by} note=${item.readAt ? "to the run, read" : "to the run, not read yet"} /><span class="end small muted"><${Time} at=${item.at} form="clock" /></span></p>
          <${Words} as="p" text=${item.text} />
        </div>`;
    case "message":
      return html`
        <div class="turn">
          <p class="turn-head"><${Speaker} name=${item.name} note=${item.part} /><span class="end small muted"><${Time} at=${item.at} form="clock" /></span></p>
          <${Said} text=${item.text} part=${item.part} />
        </div>`;
    case "end":
      return html`<${End} event=${item.event} root=${root} />`;
    default:
      return html`<${Note} note=${item} />`;
  }
}

const REASONS = {
  completed: "It has come to its end.",
  terminated: "A member, or a person, has ended it.",
  condition: "Its condition became true.",
  no_progress: "It no longer made progress.",
  max_turns: "It has reached its limit of turns.",
  budget: "Its budget is used up.",
  canceled: "It was canceled.",
  timeout: "Its time was over.",
  failed: "It has failed.",
};

function End({ event, root }) {
  const [isForking, setForking] = useState(false);
  const name = { Completed: "done", Failed: "error" }[event.phase] ?? "note";
  return html`
    <div class=${`end-note ${name}`}>
      <strong>${event.phase}${event.stopReason && event.stopReason !== event.phase.toLowerCase() ? ` · ${event.stopReason.replaceAll("_", " ")}` : ""}</strong>
      <span> ${REASONS[event.stopReason] ?? ""}</span>
      ${event.note && html`<${Words} as="p" text=${event.note} />`}
      ${event.error && html`<${Words} as="p" text=${event.error} />`}
      ${(event.notices ?? []).map((text) => html`<${Words} as="p" class="small notice" text=${text} />`)}
      ${(event.memberFailures ?? []).map((failure) => html`<${Words} as="p" class="small" text=${failure.message} />`)}
      ${event.phase === "Failed" && html`<p><button type="button" onClick=${() => setForking(true)}>Go on in a new run…</button></p>`}
      ${isForking && html`<${ForkDialog} run=${root} at="failure" onClose=${() => setForking(false)} />`}
    </div>`;
}

const how = {
  chosen: "was chosen", matched: "was chosen", fallback: "follows, since the choice named nobody",
  only_candidate: "is the only one who can follow", terminated: "nobody follows",
};

function Note({ note }) {
  const { event } = note;
  const text = () => {
    switch (note.what) {
      case "started": return html`The ${note.kind} <bdi>${visible(note.name)}</bdi> ${note.strategy ? `(${note.strategy})` : ""} begins.`;
      case "ended": return html`<bdi>${visible(event.run.split("/").at(-1))}</bdi> has ended${event.stopReason && event.stopReason !== "completed" ? `: ${event.stopReason.replaceAll("_", " ")}` : ""}. ${event.error && html`<${Words} text=${event.error} />`}`;
      case "selected": return note.speaker ? html`<${Speaker} name=${note.speaker} /> ${how[note.how] ?? "follows"}.` : "Nobody follows: the team has ended.";
      case "handoff": return html`<${Speaker} name=${note.speaker} /> <span aria-hidden="true">→</span><span class="visually-hidden">hands over to</span> <${Speaker} name=${note.receiver} />`;
      case "conditions": return note.ends ? "The condition is true: the team ends." : note.edge !== undefined && note.edge !== null ? `The conversation follows edge ${note.edge + 1}.` : "The condition is not true.";
      case "retried": return "This run retries a failed one, and keeps what was done.";
      case "reset": return html`The run was reset: what came after <${Time} at=${note.since} form="clock" /> is discarded.`;
      case "notice": return html`<${Words} text=${note.text} />`;
      case "session": return html`<bdi>${visible(note.by)}</bdi> changed the session: <code class="words">${visible(JSON.stringify(note.changes))}</code>`;
      case "stop": return html`<bdi>${visible(event.by)}</bdi> has ${event.kind === "cancel" ? "canceled the run" : event.now ? "ended the run at once" : "ended the run after the current turn"}${event.reason && html`: <${Words} text=${event.reason} />`}`;
      case "memory": return html`The memory ${event.memory && html`<bdi>${visible(event.memory)}</bdi>`} failed: <${Words} text=${event.error} />`;
      case "decided": return html`A wait of before has ended: ${event.outcome}.`;
      default: return "";
    }
  };
  return html`<p class="note-line muted"><span>${text()}</span> <span class="end small"><${Time} at=${note.at} form="clock" /></span></p>`;
}

function Turn({ turn, context }) {
  const isOpen = !turn.ended;
  const [isWhole, setWhole] = useState(false);
  const [isForking, setForking] = useState(false);
  const at = isOpen || turn.isVoid ? null : forkPlace(turn, context.root);
  const place = [turn.turn && `turn ${turn.turn}`, turn.part !== turn.speaker && turn.part, turn.stance && `for “${visible(turn.stance)}”`, turn.fn && `function ${visible(turn.fn)}`, turn.kind === "human" && "person"];
  const steps = isWhole || turn.steps.length <= FEW ? turn.steps : turn.steps.slice(-FEW);
  const finalStep = turn.steps.findLast((step) => step.type === "model");
  return html`
    <div class=${`turn speaker-line${isOpen ? " is-open" : ""}`}>
      <p class="turn-head">
        <${Speaker} name=${turn.speaker} kind=${turn.kind} note=${place.filter(Boolean).join(" · ") || (turn.kind === "selector" ? "chooses who speaks" : undefined)} />
        ${turn.isVoid && html`<span class="badge">discarded</span>`}
        ${isOpen && html`<span class="speaking"><span class="visually-hidden">is speaking</span></span>`}
        <span class="end facts">
          ${turn.usage?.totalTokens ? html`<span><${Tokens} value=${turn.usage.totalTokens} /> tokens</span>` : ""}
          ${turn.usage?.cost ? html`<${Money} value=${turn.usage.cost} />` : ""}
          ${turn.seconds >= 0.05 && html`<span class="number">${duration(turn.seconds)}</span>`}
          ${turn.at && html`<${Time} at=${turn.at} form="clock" />`}
          ${at && html`<button type="button" class="link small fork" title="Continue from here in a new run" aria-label=${`Fork after ${at}`} onClick=${() => setForking(true)}>Fork</button>`}
        </span>
      </p>
      ${isForking && html`<${ForkDialog} run=${context.root} at=${at} onClose=${() => setForking(false)} />`}
      ${turn.partial && html`<p class="small muted">The beginning of this turn is further up.</p>`}
      ${steps.length < turn.steps.length && html`<button type="button" class="link small" onClick=${() => setWhole(true)}>Show ${count(turn.steps.length - steps.length, "earlier step")}</button>`}
      ${steps.map((step) => html`<${Step} key=${step.key} step=${step} turn=${turn} isLast=${step === finalStep} context=${context} />`)}
      ${turn.children.map((child) => html`<${Nested} key=${child.path} run=${child} version=${turn.version} context=${context} />`)}
      ${turn.text !== null && html`<${Said} text=${turn.text} />`}
      ${turn.message && isStructured(turn.message.part) && html`<${Said} text=${turn.message.text} part=${turn.message.part} />`}
      ${turn.hidden && html`<p class="muted small">What is said here is not shown.</p>`}
      ${turn.chosen && html`<p>${turn.chosen.speaker ? html`<span aria-hidden="true">→ </span><${Speaker} name=${turn.chosen.speaker} /> <span class="muted">${how[turn.chosen.how]}</span>` : "Nobody follows: the team ends."}</p>`}
      ${turn.error && html`<p class="error"><${Words} text=${turn.error} /></p>`}
      ${turn.outcome === "canceled" && html`<p class="muted small">This turn was broken off.</p>`}
    </div>`;
}

/**
 * The name of the place after a turn, with which a fork begins: "3", "2/1" in the team of turn 2, or "round-2/NAME".
 * Null for turns that have no such name, as those of teams that tools have started.
 */
function forkPlace(turn, root) {
  const speaker = turn.part && turn.part !== "member" ? turn.part : turn.speaker;
  const own = turn.turn ? String(turn.turn) : turn.round ? `round-${turn.round}/${speaker}` : null;
  if (!own || turn.kind === "selector") return null;
  if (turn.run.path === root) return own;
  const target = turn.run.path.slice(root.length + 1).match(/^target-(\d+)\//)?.[1];
  if (!turn.run.place) return target && target !== "1" ? `target-${target}/${own}` : own;
  if (!PLACE_OF_TURN.test(turn.run.path)) return null;
  const above = forkPlace(turn.run.place, root);
  return above && `${above}/${own}`;
}

const PLACE_OF_TURN = /\/(turn-\d+|round-\d+\/[^/]+)\/[^/]*$/; // of a nested team, unlike one that a tool has started

const isStructured = (part) => part === "verdict" || part === "decision" || part === "critique";

/** What somebody has said; the verdict of a judge and the decision of a moderator by their fields. */
function Said({ text, part, isLive }) {
  const [isWhole, setWhole] = useState(false);
  const value = isStructured(part) ? parsed(text) : null;
  if (value) return html`<${Structured} value=${value} part=${part} />`;
  const isCut = !isWhole && text.length > LONG;
  const shown = isCut ? (isLive ? text.slice(-LONG) : text.slice(0, LONG)) : text;
  return html`
    <div class=${`said${isLive ? " is-live" : ""}`}>
      ${isCut && isLive && html`<button type="button" class="link small" onClick=${() => setWhole(true)}>Show the beginning</button>`}
      <${Words} as="div" text=${shown} />
      ${isCut && !isLive && html`<button type="button" class="link small" onClick=${() => setWhole(true)}>Show the whole text, ${count(text.length, "character")}</button>`}
    </div>`;
}

function parsed(text) {
  try {
    const value = JSON.parse(text);
    return value && typeof value === "object" && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}

const FIELDS = { next_speakers: "Next to speak", nextSpeakers: "Next to speak", briefing: "Briefing", new_angle: "New angle", newAngle: "New angle", done: "The debate is over", verdict: "Verdict", winner: "Winner", reasoning: "Reasons" };

function Structured({ value, part }) {
  const entries = Object.entries(value).filter(([, item]) => item !== null && item !== false && item !== "");
  return html`
    <dl class=${`structured structured-${part}`}>
      ${part === "verdict" && !value.winner && html`<div><dt>Winner</dt><dd>A draw</dd></div>`}
      ${entries.map(([name, item]) => html`
        <div key=${name} class=${name === "winner" ? "winner" : undefined}>
          <dt dir="auto">${FIELDS[name] ?? visible(name).replaceAll("_", " ")}</dt>
          <dd>${Array.isArray(item) && item.every((each) => typeof each === "string")
            ? item.map((each) => html`<${Speaker} name=${each} /> `)
            : html`<${Words} text=${typeof item === "string" ? item : item === true ? "yes" : JSON.stringify(item, null, 1)} />`}</dd>
        </div>`)}
    </dl>`;
}

function Step({ step, turn, isLast, context }) {
  if (step.type === "wait") return html`<${Wait} wait=${step} context=${context} />`;
  if (step.type === "tool") return html`<${Tool} step=${step} />`;
  const attempts = Math.max(step.count ?? 1, step.attempts.length + 1);
  const hasText = step.text !== null && step.text !== "";
  const isStructuredAnswer = isLast && turn.message && isStructured(turn.message.part) && parsed(turn.message.text);
  return html`
    ${step.attempts.map((attempt) => html`
      <p key=${attempt.id} class="attempt small"><span class="badge">attempt ${attempt.attempt}</span> <${Words} text=${attempt.error} /></p>`)}
    ${(step.earlier ?? []).map((text) => html`<${Said} text=${text} />`)}
    ${hasText && !isStructuredAnswer && turn.kind !== "selector" && html`<${Said} text=${step.text} />`}
    ${hasText && (isStructuredAnswer || turn.kind === "selector") && html`<${Folded} class="small" summary="The answer as it was"><${Said} text=${step.text} /><//>`}
    ${step.isOpen && step.written && html`<${Said} text=${step.written} isLive />`}
    ${step.isOpen && !step.written && !step.hidden && html`<p class="muted waiting-words">${step.model ? html`asks <bdi>${visible(step.model)}</bdi>` : "thinks"}…</p>`}
    ${step.isCutOff && html`<p class="attempt small"><span class="badge">cut off</span> at the model's token limit</p>`}
    ${step.wrong && html`<p class="attempt small"><span class="badge">asked again</span> <${Words} text=${step.wrong} /></p>`}
    ${step.error && step.error !== turn.error && html`<p class="attempt small"><span class="badge">failed</span> <${Words} text=${step.error} /></p>`}
    ${!step.isOpen && attempts > 1 && !step.attempts.length && html`<p class="small muted">after ${count(attempts, "attempt")}</p>`}`;
}

function Tool({ step }) {
  const state = step.isOpen ? "runs" : step.isFailed ? (step.error ? "failed" : "canceled") : step.ends ? "ends the team" : "returned";
  const first = step.arguments && step.arguments !== "{}" ? visible(step.arguments).replace(/\s+/g, " ").slice(0, 160) : "";
  return html`
    <${Folded} class="tool" summary=${html`
      <span class="tool-line"><code class="words">${visible(step.tool)}</code>
        <span class="tool-arguments muted" dir="auto">${first}</span>
        <span class=${`badge badge-${step.isFailed ? "bad" : step.isOpen ? "open" : "plain"}`}>${state}${step.seconds >= 0.1 ? ` · ${duration(step.seconds)}` : ""}</span></span>`}>
      <p class="small muted">Arguments</p>
      <${Words} as="pre" class="code-block" text=${pretty(step.arguments)} />
      ${!step.isOpen && html`
        <p class="small muted">${step.isFailed ? "Error" : "Result"}</p>
        <${Words} as="pre" class="code-block" text=${step.isFailed ? (step.error ?? "It was canceled.") : step.result === null ? "It is not shown." : pretty(step.result)} />`}
      ${step.count > 1 && html`<p class="small muted">after ${count(step.count, "attempt")}</p>`}
    <//>
    ${step.isOpen && step.written && html`<${Words} as="p" class="tool-progress small muted" text=${lastLine(step.written)} />`}
    ${step.attempts.map((attempt) => html`<p class="attempt small"><span class="badge">attempt ${attempt.attempt}</span> <${Words} text=${attempt.error} /></p>`)}`;
}

/** What a tool has reported last of its progress. */
function lastLine(text) {
  return text.trimEnd().split("\n").at(-1);
}

/** JSON with line breaks, if no digit of it changes by that; other text as it is. */
function pretty(text) {
  if (text === null || text === undefined) return "They are not shown.";
  try {
    const value = JSON.parse(text);
    if (value === null || typeof value !== "object") return text;
    const whole = JSON.stringify(value);
    return whole.replace(/\s/g, "") === text.replace(/\s/g, "") ? JSON.stringify(value, null, 2) : text;
  } catch {
    return text;
  }
}

const WAITS = {
  approval: "waits for approval", question: "waits for an answer", budget: "waits for a larger budget", client_tool: "waits for its client",
  circuit: "waits until a server works again", outage: "waits for the end of an outage", pause: "is paused",
  quota: "waits for its quota",
};
const OUTCOMES = { approved: "approved", rejected: "rejected", replied: "answered", declined: "declined", timeout: "not decided in time", over: "over", discarded: "discarded by a reset" };

function Wait({ wait, context }) {
  const { event, ended } = wait;
  const who = event.speaker?.split("/").at(-1);
  const waiting = ended ? null : context.decisions.find((each) => each.decision.id === event.wait);
  const pending = waiting?.decision;
  const asked = event.kind === "question" || !event.tool ? event.text : null;
  return html`
    <div class=${`wait${ended ? "" : " is-waiting"}`}>
      <p class="turn-head">
        ${who ? html`<${Speaker} name=${who} />` : html`<strong>The run</strong>`}
        <span>${WAITS[event.kind]}${event.tool && html` for <code class="words">${visible(event.tool)}</code>`}</span>
        <span class="end facts">${ended
          ? html`<span>${OUTCOMES[ended.outcome] ?? ended.outcome}${ended.remembered ? ", remembered" : ""}${ended.by && html` by <bdi>${visible(ended.by)}</bdi>`}</span>`
          : html`<span>since <${Time} at=${event.at} form="clock" /></span>`}</span>
      </p>
      ${asked && event.kind !== "pause" && !pending && html`<${Words} as="p" text=${asked} />`}
      ${event.tool && event.text && !pending && html`<${Folded} class="small" summary="Arguments"><${Words} as="pre" class="code-block" text=${pretty(event.text)} /><//>`}
      ${pending && html`<${Decision} decision=${pending} run=${context.root} refusal=${waiting.refusal} onDone=${context.onDecided} />`}
      ${ended?.reason && html`<p class="small"><${Words} text=${ended.reason} /></p>`}
      ${ended?.text && event.kind !== "client_tool" && html`<${Said} text=${ended.text} />`}
    </div>`;
}

/** A run within a turn: a nested team, or an agent that speaks beside others. */
function Nested({ run, context }) {
  const turns = run.turns.length;
  const open = run.turns.findLast((turn) => !turn.ended);
  const waits = run.turns.some((turn) => turn.steps.some((step) => step.type === "wait" && !step.ended));
  const last = run.ended || run.kind === "agent" ? run.turns.findLast((turn) => turn.kind !== "selector") : null;
  return html`
    <${Folded} key=${`${run.path}${waits}`} class="nested" open=${waits} summary=${html`
      <span class="tool-line"><bdi>${visible(run.name)}</bdi>
        <span class="muted small">${[run.strategy ?? run.kind, turns && count(turns, "turn")].filter(Boolean).join(" · ")}</span>
        ${open ? html`<span class="badge badge-open"><bdi>${visible(open.speaker)}</bdi> speaks</span>` : run.ended ? html`<span class="badge">${run.ended.phase.toLowerCase()}</span>` : ""}</span>`}>
      <div class="nested-items">
        <${RunLinks} run=${run.path} isPart />
        ${run.items.slice(-100).map((item) => html`<div key=${item.key} class=${`item item-${item.type}${item.isVoid ? " is-void" : ""}`}><${Item} item=${item} ...${context} /></div>`)}
      </div>
    <//>
    ${last?.steps.filter((step) => step.written || step.text).slice(-1).map((step) => html`<${Said} text=${step.written || step.text} isLive=${step.isOpen} />`)}`;
}
