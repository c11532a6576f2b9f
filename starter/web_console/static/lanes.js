/** Lanes over time: one for each member and each child run, with its turns, calls, attempts and waits. */
import { html, useLayoutEffect, useMemo, useRef, useState } from "./vendor/htm-preact-standalone.js";
import { Empty, count, duration, speakerColor, useNow, visible } from "./ui.js";

const ROW = 26;
const AXIS = 28;
const NAMES = 150;
const MAX_BARS = 1_500; // turns of which the calls are drawn, too
const STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 43_200, 86_400, 604_800];

const time = (text) => new Date(text).getTime();

/** The lanes of a model: `{name, note, depth, turns, waits}`, in the order of their first turns. */
function lanesOf(model) {
  const lanes = new Map();
  const pauses = [];
  const add = (run, above, depth) => {
    for (const turn of run.turns) {
      const key = `${above}\n${turn.speaker}`;
      let lane = lanes.get(key);
      if (!lane) lanes.set(key, lane = { key, above, name: turn.speaker, in: depth ? run.name : "", depth, turns: [] });
      // An agent that speaks beside others does so in a run of its own: its calls are those of the turn.
      const own = turn.children.filter((child) => child.turns.length === 1 && child.turns[0].speaker === turn.speaker);
      lane.turns.push({ turn, steps: [turn, ...own.flatMap((child) => child.turns)].flatMap((each) => each.steps) });
      for (const child of turn.children) if (!own.includes(child)) add(child, key, depth + 1);
    }
    for (const item of run.items) if (item.type === "wait") pauses.push(item);
  };
  for (const run of model.runs.values()) if (!run.place) add(run, "", 0);
  const below = (above) => [...lanes.values()].filter((lane) => lane.above === above).flatMap((lane) => [lane, ...below(lane.key)]);
  return { lanes: below(""), pauses };
}

export function Lanes({ model, version, isOpen, onTurn, onEarlier, isLoading }) {
  const box = useRef(null);
  const [width, setWidth] = useState(800);
  const [range, setRange] = useState(null); // [start, end] in milliseconds; null for everything
  const now = useNow();
  useLayoutEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.max(280, Math.floor(entry.contentRect.width))));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const { lanes, pauses } = useMemo(() => lanesOf(model), [model, version]);
  const begin = model.from ? time(model.from) : now;
  const end = Math.max(isOpen ? now : 0, model.to ? time(model.to) : 0, begin + 1000);
  const [from, to] = range ?? [begin, end];
  const names = Math.min(NAMES, Math.max(84, width * 0.24));
  const x = (at) => names + ((at - from) / (to - from)) * (width - names - 8);
  const zoom = (factor, at = (from + to) / 2) => {
    const length = Math.max(200, (to - from) * factor);
    const start = at - (at - from) * (length / (to - from));
    setRange(length >= end - begin ? null : [Math.max(begin, Math.min(start, end - length)), Math.max(begin, Math.min(start, end - length)) + length]);
  };
  const move = (part) => {
    const by = (to - from) * part;
    const start = Math.max(begin, Math.min(from + by, end - (to - from)));
    setRange([start, start + to - from]);
  };
  const onWheel = (event) => {
    if (!(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    const at = from + ((event.clientX - box.current.getBoundingClientRect().left - names) / (width - names)) * (to - from);
    zoom(event.deltaY > 0 ? 1.25 : 0.8, at);
  };
  useLayoutEffect(() => {
    const node = box.current;
    node.addEventListener("wheel", onWheel, { passive: false });
    return () => node.removeEventListener("wheel", onWheel);
  });
  const onKeyDown = (event) => {
    const act = { "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1.6), ArrowLeft: () => move(-0.25), ArrowRight: () => move(0.25), 0: () => setRange(null) }[event.key];
    if (!act || event.target !== event.currentTarget) return;
    event.preventDefault();
    act();
  };
  const height = AXIS + lanes.length * ROW + 4;
  const isIn = (start, finish) => finish >= from && start <= to;
  const bars = lanes.flatMap((lane, row) => lane.turns.map(({ turn, steps }) => ({ turn, steps, row, lane, start: time(turn.at ?? model.from), finish: turn.ended ? time(turn.ended) : isOpen ? now : end })))
    .filter((bar) => isIn(bar.start, bar.finish));
  const isFine = bars.length <= MAX_BARS;
  if (!lanes.length) return html`<div ref=${box}><${Empty} title="Nothing has happened yet">As soon as a member speaks, its lane is here.<//></div>`;
  return html`
    <div class="lanes" ref=${box}>
      <div class="row lanes-tools">
        <p class="small muted">${count(lanes.length, "lane")} · ${duration((to - from) / 1000)} of ${duration((end - begin) / 1000)}${model.isPart ? html`, of what is loaded. <button type="button" class="link" onClick=${onEarlier} aria-busy=${isLoading ? "true" : undefined}>Load earlier turns</button>` : ""}</p>
        <span class="end actions">
          <button type="button" class="icon" aria-label="Earlier" onClick=${() => move(-0.5)}>←</button>
          <button type="button" class="icon" aria-label="Later" onClick=${() => move(0.5)}>→</button>
          <button type="button" class="icon" aria-label="Zoom in" onClick=${() => zoom(0.6)}>+</button>
          <button type="button" class="icon" aria-label="Zoom out" onClick=${() => zoom(1.6)}>−</button>
          <button type="button" class="quiet" onClick=${() => setRange(null)}>All</button>
        </span>
      </div>
      <div class="lanes-scroll" tabindex="0" role="group" aria-label="Lanes over time. Plus and minus zoom, the arrows move." onKeyDown=${onKeyDown}>
        <svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="group" aria-label=${`${count(lanes.length, "lane")} of members and child runs`}>
          <${Axis} from=${from} to=${to} begin=${begin} x=${x} names=${names} width=${width} height=${height} />
          ${lanes.map((lane, row) => html`
            <g key=${lane.key} class=${`lane speaker-${speakerColor(lane.name)}`}>
              ${row % 2 === 1 && html`<rect class="lane-band" x="0" y=${AXIS + row * ROW} width=${width} height=${ROW} />`}
              <text class="lane-name" x=${8 + Math.min(lane.depth, 3) * 10} y=${AXIS + row * ROW + 17}>${clipped(lane.name, (names - 14 - Math.min(lane.depth, 3) * 10) / 7.2)}<title>${visible(lane.name)}${lane.in ? ` in ${visible(lane.in)}` : ""}</title></text>
            </g>`)}
          <svg x=${names} y="0" width=${Math.max(0, width - names)} height=${height} viewBox=${`${names} 0 ${Math.max(1, width - names)} ${height}`}>
            ${bars.map(({ turn, steps, row, lane, start, finish }) => {
              const left = x(start);
              const long = Math.max(2, x(finish) - left - 1);
              const y = AXIS + row * ROW + 5;
              return html`
                <g key=${turn.key} class=${`speaker-${speakerColor(lane.name)}`}>
                  <rect class=${`bar${turn.ended ? "" : " bar-open"}${turn.outcome === "failed" ? " bar-failed" : ""}`} x=${left} y=${y} width=${long} height=${ROW - 10} rx="3"
                    onClick=${() => onTurn(turn)}>
                    <title>${visible(turn.speaker)}${turn.turn ? `, turn ${turn.turn}` : ""}: ${duration((finish - start) / 1000)}${turn.outcome && turn.outcome !== "completed" ? `, ${turn.outcome}` : ""}</title>
                  </rect>
                  ${isFine && steps.map((step) => html`<${Mark} key=${step.key} step=${step} x=${x} y=${y} end=${finish} />`)}
                </g>`;
            })}
            ${pauses.filter((wait) => isIn(time(wait.at), wait.ended ? time(wait.ended.at) : end)).map((wait) => html`
              <rect key=${wait.key} class="bar-pause" x=${x(time(wait.at))} y=${AXIS} width=${Math.max(2, x(wait.ended ? time(wait.ended.at) : end) - x(time(wait.at)))} height=${height - AXIS}>
                <title>${wait.event.kind === "pause" ? "paused" : `waits: ${wait.event.kind}`}</title>
              </rect>`)}
          </svg>
        </svg>
      </div>
      <p class="legend small muted">
        <span><i class="key key-turn"></i>turn</span><span><i class="key key-call"></i>model call</span><span><i class="key key-tool"></i>tool call</span><span><i class="key key-attempt"></i>failed attempt</span><span><i class="key key-wait"></i>wait</span><span><i class="key key-pause"></i>pause</span>
      </p>
    </div>`;
}

/** A call or a wait on the bar of its turn. */
function Mark({ step, x, y, end }) {
  if (!step.at) return null;
  const start = time(step.at);
  const last = step.type === "wait" ? (step.ended ? time(step.ended.at) : end) : step.endedAt ? time(step.endedAt) : end;
  const left = x(start);
  const long = Math.max(1.5, x(last) - left);
  const name = step.type === "wait" ? "mark-wait" : step.type === "tool" ? "mark-tool" : "mark-call";
  const what = step.type === "wait" ? `waits: ${step.event.kind}` : step.type === "tool" ? step.tool : step.model ?? "model";
  return html`
    <rect class=${`mark ${name}${step.error ? " mark-failed" : ""}`} x=${left} y=${step.type === "tool" ? y + 8 : y + 3} width=${long} height=${step.type === "wait" ? 10 : 5}>
      <title>${visible(what)}: ${duration((last - start) / 1000)}${(step.count ?? 1) > 1 ? `, ${count(step.count, "attempt")}` : ""}</title>
    </rect>
    ${step.attempts?.map((attempt) => html`<circle key=${attempt.id} class="mark-attempt" cx=${x(time(attempt.at))} cy=${y + 8} r="3"><title>attempt ${attempt.attempt} failed</title></circle>`)}
    ${!step.attempts?.length && step.count > 1 && html`<circle class="mark-attempt" cx=${left + 3} cy=${y + 8} r="3"><title>${count(step.count, "attempt")}</title></circle>`}`;
}

function Axis({ from, to, begin, x, names, width, height }) {
  const seconds = (to - from) / 1000;
  const step = STEPS.find((each) => seconds / each <= Math.max(2, (width - names) / 90)) ?? STEPS.at(-1);
  const ticks = [];
  for (let at = Math.ceil((from - begin) / 1000 / step) * step; begin + at * 1000 <= to && ticks.length < 60; at += step) ticks.push(at);
  return html`<g class="axis">${ticks.map((at) => html`
    <g key=${at}>
      <line x1=${x(begin + at * 1000)} x2=${x(begin + at * 1000)} y1=${AXIS - 4} y2=${height} />
      <text x=${x(begin + at * 1000) + 3} y="15">${at === 0 ? "0" : duration(Math.round(at * 10) / 10)}</text>
    </g>`)}</g>`;
}

function clipped(text, characters) {
  const all = [...visible(text)];
  return all.length > characters ? `${all.slice(0, Math.max(1, Math.floor(characters) - 1)).join("")}…` : all.join("");
}
