/** The page of one run: its conversation, its members, and its lanes over time. */
import { html, useCallback, useEffect, useMemo, useReducer, useRef, useState } from "./vendor/htm-preact-standalone.js";
import { events, get } from "./api.js";
import { RunActs } from "./acts.js";
import { Item, Windowed } from "./conversation.js";
import { Graph } from "./graph.js";
import { Lanes } from "./lanes.js";
import { RunModel } from "./run_model.js";
import { Duration, Empty, ErrorText, Folded, Loading, Money, Phase, Speaker, Time, Tokens, Words, count, duration, number, useLoaded, usePolled, visible } from "./ui.js";

const FIRST = 300; // events of the first page: about sixty turns
const MORE = 600;
const IN_LANES = 10_000; // events that are loaded by themselves for the lanes
const POLL = 2_500;
const SPOKEN_EVERY = 5_000; // milliseconds between two texts for screen readers

const pathOf = (id, operation = "") => `/runs/${encodeURIComponent(id)}${operation}`;
const OPEN = new Set(["Running", "InputRequired", "Waiting", "Paused"]);

/**
 * The events of a run, as a model of its conversation: a page of them, those before and after it on demand, and from
 * the newest page on what happens. `place` is `{turn}` or `{round}`, from which the first page begins; null for the end.
 */
function useRun(id, place) {
  const [, redraw] = useReducer((times) => times + 1, 0);
  const held = useRef(null);
  const start = useCallback((from) => {
    held.current?.controller.abort();
    const state = {
      controller: new AbortController(), model: new RunModel(id), events: [], before: null, after: null, isWhole: false, isLive: false,
      isConnected: true, isLoading: true, isLoadingBefore: false, isLoadingAfter: false, error: null, target: null, missing: null,
    };
    held.current = state;
    redraw();
    const { signal } = state.controller;
    const isCurrent = () => held.current === state && !signal.aborted;
    const fail = (error) => {
      if (!isCurrent() || error.name === "AbortError") return;
      state.error = error;
      state.isLoading = state.isLoadingBefore = state.isLoadingAfter = false;
      redraw();
    };
    const take = (page) => {
      state.events.push(...page.events);
      for (const event of page.events) state.model.apply(event);
    };
    state.rebuild = (all) => {
      const open = state.model;
      state.events = all;
      state.model = new RunModel(id);
      for (const event of all) state.model.apply(event);
      for (const [path, run] of open.runs) { // the words of open calls are in no page
        for (const [call, step] of run.calls) {
          const known = state.model.runs.get(path)?.calls.get(call);
          if (known?.isOpen) Object.assign(known, { written: step.written, attempts: step.attempts });
        }
      }
    };
    const follow = async () => {
      state.isLive = true;
      let waiting = [];
      let planned = null;
      const flush = () => {
        planned = null;
        if (!isCurrent()) return;
        const taken = waiting;
        waiting = [];
        for (const event of taken) {
          if (!event.type.startsWith("text.") && event.type !== "attempt.failed") state.events.push(event);
          state.model.apply(event);
        }
        redraw();
      };
      const onConnection = (isConnected) => {
        if (!isCurrent() || state.isConnected === isConnected) return;
        state.isConnected = isConnected;
        redraw();
      };
      for await (const event of events(id, { after: state.after, signal, onConnection })) {
        waiting.push(event);
        planned ??= document.hidden ? setTimeout(flush, 250) : requestAnimationFrame(flush);
        if (event.cursor) state.after = event.cursor;
      }
      flush();
    };
    state.more = async () => {
      if (state.isLive || state.isLoadingAfter || state.isLoading) return;
      state.isLoadingAfter = true;
      try {
        const page = await get(pathOf(id, "/history"), { after: state.after, limit: MORE }, { signal });
        if (!isCurrent()) return;
        take(page);
        state.after = page.after ?? state.after;
        state.isLoadingAfter = false;
        if (!page.more && !state.model.end) follow().catch(fail);
        else if (!page.more) state.isLive = true;
        redraw();
      } catch (error) { fail(error); }
    };
    state.earlier = async () => {
      if (state.isWhole || state.isLoadingBefore || state.isLoading || state.before === null) return;
      state.isLoadingBefore = true;
      redraw();
      try {
        const page = await get(pathOf(id, "/history"), { before: state.before, limit: MORE }, { signal });
        if (!isCurrent()) return;
        state.before = page.before ?? null;
        state.isWhole = state.before === null;
        state.isLoadingBefore = false;
        state.rebuild([...page.events, ...state.events]);
        redraw();
      } catch (error) { fail(error); }
    };
    (async () => {
      try {
        const page = await get(pathOf(id, "/history"), { ...(from ?? {}), limit: FIRST }, { signal });
        if (!isCurrent()) return;
        if (from && !page.events.length) { // there is no such turn, or not yet
          start(null);
          held.current.missing = from;
          return;
        }
        take(page);
        state.before = page.before ?? null;
        state.isWhole = state.before === null;
        state.after = page.after ?? null;
        state.isLoading = false;
        state.target = from;
        redraw();
        if (!page.more) {
          if (state.model.end) state.isLive = true;
          else await follow();
        }
      } catch (error) { fail(error); }
    })();
  }, [id]);
  const key = place ? JSON.stringify(place) : "";
  useEffect(() => {
    const state = held.current;
    const known = place && state && !state.isLoading && state.model.items.find((item) => isAt(item, place));
    if (known) { // it is loaded
      state.target = { ...place };
      redraw();
    } else start(place);
  }, [id, key]);
  useEffect(() => () => held.current?.controller.abort(), [id]);
  return { state: held.current, restart: start };
}

const isAt = (item, place) => !item.isVoid && (
  place.turn ? item.type === "turn" && item.turn === Number(place.turn) : item.type === "round" && item.round === Number(place.round)
);

/** The page of a run. The `query` of the address may have a `turn` or a `round`, and a `view`. */
export function RunPage({ id, query }) {
  const place = useMemo(() => {
    if (/^[1-9]\d{0,8}$/.test(query?.turn ?? "")) return { turn: query.turn };
    return /^[1-9]\d{0,8}$/.test(query?.round ?? "") ? { round: query.round } : null;
  }, [query?.turn, query?.round]);
  const view = query?.view === "lanes" ? "lanes" : "conversation";
  const { state, restart } = useRun(id, place);
  const ended = state?.model.end;
  const polled = usePolled((signal) => get(pathOf(id), {}, { signal }), ended ? null : POLL, [id, Boolean(ended)]);
  // What the run was asked does not change once its first member has begun. The conversation comes before it.
  const hasPage = Boolean(state) && !state.isLoading;
  const outline = useLoaded((signal) => (hasPage ? get(pathOf(id, "/outline"), {}, { signal }) : undefined), [id, hasPage, Boolean(state?.model.members.size)]);
  const status = polled.value?.status;
  const waits = status?.phase === "InputRequired" && !ended;
  const inbox = usePolled(async (signal) => (waits ? (await get("/inbox", {}, { signal })).waiting : []), waits ? POLL : null, [id, waits]);
  const decisions = (inbox.value ?? []).filter((each) => each.root === id);
  const wantsMore = view === "lanes" && state && !state.isWhole && !state.isLoading && !state.isLoadingBefore && !state.error && state.events.length < IN_LANES;
  useEffect(() => { if (wantsMore) state.earlier(); }, [wantsMore]);
  const onDecided = () => {
    polled.reload();
    inbox.reload();
  };
  if (polled.error?.status === 404) return html`<${Empty} title="There is no such run">It may have been deleted, or you may not see it. <a href="#/">All runs</a><//>`;
  if (!state) return html`<${Loading} what="the run" />`;
  const { model } = state;
  const info = outline.value;
  const phase = ended ? ended.phase : status?.paused && status.phase === "Running" ? "Paused" : status?.phase;
  const isOpen = !ended && (!status || OPEN.has(status.phase));
  model.isPart = !state.isWhole || !state.isLive; // some turns are not loaded
  const usage = ended?.usage ?? status?.tokenUsage;
  const turns = ended?.turns ?? status?.turns ?? status?.responses?.reduce((sum, each) => sum + (each.turns ?? 0), 0);
  return html`
    <div class="run">
      <header class="run-head">
        <div class="row">
          <h1><bdi>${visible(info?.name ?? id)}</bdi></h1>
          ${phase && html`<${Phase} phase=${phase} />`}
          ${!state.isConnected && html`<span class="badge" role="status">connecting again…</span>`}
        </div>
        <p class="facts">
          ${info?.strategy && html`<span>${info.strategy}</span>`}
          ${status?.startTime && html`<span>started <${Time} at=${status.startTime} /></span>
            <span><${Duration} start=${status.startTime} end=${ended?.at ?? status.completionTime} /></span>`}
          ${turns ? html`<span>${count(turns, "turn")}</span>` : ""}
          ${usage?.totalTokens ? html`<span><${Tokens} value=${usage.totalTokens} /> tokens</span>` : ""}
          ${usage?.cost ? html`<span><${Money} value=${usage.cost} /></span>` : ""}
          ${status?.forkedFrom && html`<span>forked from <a href=${addressOf(status.forkedFrom, {})}><bdi>${visible(status.forkedFrom)}</bdi></a> at ${visible(status.forkedAt)} · <a href=${`#/compare/${encodeURIComponent(status.forkedFrom)}/${encodeURIComponent(id)}`}>Compare</a></span>`}
          <span class="run-id"><bdi>${visible(id)}</bdi></span>
        </p>
        ${status && html`<${RunActs} run=${id} status=${status} onDone=${onDecided} />`}
      </header>
      <nav class="views row" aria-label="Views of the run">
        <a href=${addressOf(id, {})} aria-current=${view === "conversation" ? "page" : undefined}>Conversation</a>
        <a href=${addressOf(id, { view: "lanes" })} aria-current=${view === "lanes" ? "page" : undefined}>Lanes</a>
        <${GoTo} id=${id} />
      </nav>
      <${ErrorText} error=${state.error} retry=${() => restart(place)} />
      ${polled.error && !polled.value && html`<${ErrorText} error=${polled.error} retry=${polled.reload} />`}
      ${state.missing && html`<p class="note" role="status">${state.missing.turn ? `Turn ${number(Number(state.missing.turn))}` : `Round ${number(Number(state.missing.round))}`} does not exist, or not yet. The newest turns are shown.</p>`}
      <div class="run-body">
        <aside class="run-side"><${Side} id=${id} info=${info} model=${model} version=${model.version} isOpen=${isOpen} ended=${ended} /></aside>
        <div class="run-main">
          ${view === "lanes"
            ? html`<${Lanes} model=${model} version=${model.version} isOpen=${isOpen} onEarlier=${() => state.earlier()} isLoading=${state.isLoadingBefore} onTurn=${(turn) => {
              const above = topOf(turn);
              location.hash = addressOf(id, above.turn ? { turn: above.turn } : above.round ? { round: above.round } : {});
            }} />`
            : html`<${Conversation} id=${id} state=${state} question=${info?.question} decisions=${decisions} onDecided=${onDecided} isOpen=${isOpen} onNewest=${() => (query?.turn || query?.round ? (location.hash = addressOf(id, {})) : restart(null))} />`}
        </div>
      </div>
      <${Announcer} model=${model} version=${model.version} isLive=${state.isLive && isOpen} />
    </div>`;
}

/** The turn of the run's own conversation in which a turn of a child run is. */
function topOf(turn) {
  let top = turn;
  while (top.run?.place) top = top.run.place;
  return top;
}

function addressOf(id, query) {
  const given = new URLSearchParams(query).toString();
  return `#/runs/${encodeURIComponent(id)}${given ? `?${given}` : ""}`;
}

function GoTo({ id }) {
  const submit = (event) => {
    event.preventDefault();
    const turn = new FormData(event.currentTarget).get("turn");
    if (/^[1-9]\d{0,8}$/.test(turn)) location.hash = addressOf(id, { turn });
  };
  return html`
    <form class="go-to end" onSubmit=${submit}>
      <label class="small muted" for="go-to-turn">Go to turn</label>
      <input id="go-to-turn" name="turn" aria-label="Go to turn" placeholder="turn" inputmode="numeric" pattern="[1-9][0-9]{0,8}" required autocomplete="off" />
    </form>`;
}

function Conversation({ id, state, question, decisions, onDecided, isOpen, onNewest }) {
  const { model } = state;
  const onStart = useCallback(() => state.earlier?.(), [state]);
  const onEnd = useCallback(() => state.more?.(), [state]);
  const target = useMemo(() => (state.target ? model.items.find((item) => isAt(item, state.target)) ?? null : null), [state.target]);
  if (state.isLoading && !model.items.length) return html`<${Loading} what="the conversation" />`;
  return html`
    ${state.isWhole && question && html`<${Question} question=${question} />`}
    ${!state.isWhole && html`<p class="edge-note small muted" role="status">${state.isLoadingBefore ? "Loading earlier turns…" : html`<button type="button" class="link" onClick=${onStart}>Earlier turns</button>`}</p>`}
    ${!model.items.length && html`<${Empty} title="Nobody has spoken yet">${isOpen ? "Text is shown as it arrives." : "The run ended before anyone spoke."}<//>`}
    <${Windowed} key=${id} items=${model.items} label="The conversation" isBusy=${state.isLoadingBefore} follows=${state.isLive && isOpen && !state.target} startsAtEnd=${!state.target && (isOpen || !state.isWhole)}
      onStart=${onStart} onEnd=${onEnd} target=${target}
      draw=${(item) => html`<${Item} item=${item} version=${item.version} root=${id} decisions=${decisions} onDecided=${onDecided} />`} />
    ${!state.isLive && html`<p class="edge-note small"><button type="button" onClick=${onNewest}>To the newest turn</button></p>`}`;
}

function Question({ question }) {
  const parts = typeof question === "string" ? [question] : question.flatMap((message) => (
    typeof message.content === "string" ? [message.content] : (message.content ?? []).map((part) => part.text ?? `(${part.type})`)
  ));
  return html`<div class="question"><h2 class="visually-hidden">The question</h2>${parts.map((text) => html`<${Words} as="p" text=${text} />`)}</div>`;
}

/** The team's graph, the members with what they have used, and the forks of the run. */
function Side({ id, info, model, version, isOpen, ended }) {
  const drawing = useLoaded(async (signal) => {
    if (!info || info.kind !== "team") return null;
    return get(`/runs/${encodeURIComponent(id)}/drawing`, {}, { signal });
  }, [id, info?.kind]);
  return html`
    ${info && drawing.value?.drawing && html`<${Folded} open=${innerWidth > 1000} summary="Team"><${TeamGraph} drawing=${drawing.value.drawing} isInline=${drawing.value.isInline} info=${info} model=${model} version=${version} /><//>`}
    <${Members} id=${id} model=${model} isOpen=${isOpen} isReady=${Boolean(info)} />
    <${Forks} id=${id} ended=${ended} isReady=${Boolean(info)} />`;
}

const SUMMED = 5_000; // milliseconds between two readings of the sums of a long run that is open
const SUMMING = 700; // the same while the gateway is still reading it

/** What each speaker has used in the whole run: of a run that is loaded in part, the gateway knows. */
function Members({ id, model, isOpen, isReady }) {
  const needsSums = model.isPart && isReady;
  const [isComplete, setComplete] = useState(false);
  const sums = usePolled(async (signal) => {
    if (!needsSums) return null;
    const read = await get(pathOf(id, "/members"), {}, { signal });
    setComplete(read.isComplete);
    return read.members.map((each) => ({
      name: each.name, turns: each.turns, seconds: each.seconds, tokens: each.usage.totalTokens ?? 0, cost: each.usage.cost ?? null,
      calls: each.usage.modelCalls ?? 0, toolCalls: each.usage.toolCalls ?? 0,
    }));
  }, !needsSums || (isComplete && !isOpen) ? null : isComplete ? SUMMED : SUMMING, [id, needsSums, isComplete, isOpen]);
  const loaded = [...model.members.values()];
  const isSummed = model.isPart && sums.value;
  const members = (isSummed ? sums.value : loaded).filter((each) => each.turns || each.calls || each.tokens);
  const parts = new Map(loaded.map((each) => [each.name, each]));
  if (!members.length) return null;
  const tokens = Math.max(1, ...members.map((each) => each.tokens));
  const hasCost = members.some((each) => each.cost !== null);
  const hasTools = members.some((each) => each.toolCalls);
  return html`
    <${Folded} open=${innerWidth > 1000} summary=${count(members.length, "member")}>
      <ul class="members">${members.map((each) => {
        const known = parts.get(each.name);
        return html`
          <li key=${each.name} class=${known?.speaking ? "is-speaking" : undefined}>
            <p class="row"><${Speaker} name=${each.name} note=${known?.part && known.part !== each.name ? known.part : undefined} />
              ${each.tokens > 0 && html`<span class="end number"><${Tokens} value=${each.tokens} /> <span class="muted">tokens</span></span>`}</p>
            ${each.tokens > 0 && html`<svg class="share" viewBox="0 0 100 3" preserveAspectRatio="none" aria-hidden="true"><rect width=${(100 * each.tokens) / tokens} height="3" rx="1" /></svg>`}
            <p class="facts">
              ${each.turns > 0 && html`<span>${count(each.turns, "turn")}</span>`}
              ${each.calls > 0 && html`<span>${count(each.calls, "call")}</span>`}
              ${hasTools && each.toolCalls > 0 && html`<span>${count(each.toolCalls, "tool call")}</span>`}
              ${each.seconds >= 0.05 && html`<span>${duration(each.seconds)}</span>`}
              ${hasCost && html`<${Money} value=${each.cost} />`}
            </p>
          </li>`;
      })}</ul>
      ${model.isPart && !(isSummed && isComplete) && html`<p class="small muted" role="status">${isSummed ? "The rest of the run is being summed up…" : "Of the turns that are loaded. The whole run is being summed up…"}</p>`}
    <//>`;
}

/** The runs that have gone on from a place in this one, or in the run from which it has come, as a tree. */
function Forks({ id, ended, isReady }) {
  const { value } = useLoaded((signal) => (isReady ? get(pathOf(id, "/forks"), {}, { signal }) : null), [id, isReady, Boolean(ended)]);
  const runs = value?.runs ?? [];
  if (runs.length < 2) return null;
  const self = runs.findIndex((run) => run.id === id);
  const comparison = (run) => (runs.indexOf(run) < self ? [run.id, id] : [id, run.id]).map(encodeURIComponent).join("/");
  const branches = (source) => runs.filter((run) => run.source === source && run.id !== source);
  const branch = (run) => html`
    <li key=${run.id}>
      <p class="row small">
        ${run.id === id ? html`<strong aria-current="page">This run</strong>` : html`<a href=${addressOf(run.id, {})}><bdi>${visible(run.id)}</bdi></a>`}
        <${Phase} phase=${run.state} />
      </p>
      <p class="facts">
        ${run.at && html`<span>after ${run.at === "failure" ? "the failure" : html`<code>${visible(run.at)}</code>`}</span>`}
        <span><${Time} at=${run.startTime} /></span>
        ${run.id !== id && html`<a href=${`#/compare/${comparison(run)}`} aria-label=${`Compare this run with ${visible(run.id)}`}>Compare</a>`}
      </p>
      ${branches(run.id).length > 0 && html`<ul>${branches(run.id).map(branch)}</ul>`}
    </li>`;
  return html`
    <${Folded} open=${innerWidth > 1000} summary=${count(runs.length - 1, "fork")}>
      <ul class="forks">${branch(runs[0])}</ul>
      ${value.more && html`<p class="small muted">There are more than shown here.</p>`}
    <//>`;
}

/** The team's graph: who speaks is lit, and the ways that were taken are strong. */
function TeamGraph({ drawing, isInline, info, model }) {
  const speaking = new Set([...model.members.values()].filter((each) => each.speaking).map((each) => each.name));
  const lit = drawing.nodes.filter((node) => speaking.has(node.speaker) || speaking.has(node.part)).map((node) => node.id);
  const speakers = new Map(drawing.nodes.map((node) => [node.id, node.speaker]));
  const times = (start, end) => model.ways.get(`${speakers.get(start)}\n${speakers.get(end)}`) ?? 0;
  const taken = drawing.edges.map((edge) => [edge.id, times(edge.start, edge.end) + (edge.twoWay ? times(edge.end, edge.start) : 0)]);
  const page = `#/teams/${[info.namespace, "team", info.name].map(encodeURIComponent).join("/")}`;
  return html`${!isInline && html`<a href=${page} class="small">Open the team</a>`}<${Graph} drawing=${drawing} lit=${new Set(lit)} taken=${new Map(taken.filter(([, count_]) => count_))} />`;
}

/** Says from time to time who speaks, and what waits. */
function Announcer({ model, version, isLive }) {
  const [text, setText] = useState("");
  const last = useRef({ at: 0, timer: null });
  const latest = model.items.findLast((item) => item.type !== "note");
  const next = !latest ? "" : latest.type === "turn" ? `${visible(latest.speaker)} ${latest.ended ? "has spoken" : "is speaking"}${latest.turn ? `, turn ${latest.turn}` : ""}.`
    : latest.type === "end" ? `The run has ended: ${latest.event.phase}.` : latest.type === "wait" ? "The run waits." : "";
  useEffect(() => {
    if (!isLive && latest?.type !== "end") return;
    const { at, timer } = last.current;
    if (timer) clearTimeout(timer);
    last.current.timer = setTimeout(() => {
      last.current.at = Date.now();
      setText(next);
    }, Math.max(0, at + SPOKEN_EVERY - Date.now()));
  }, [next, isLive]);
  useEffect(() => () => clearTimeout(last.current.timer), []);
  return html`<p class="visually-hidden" role="status" aria-live="polite">${text}</p>`;
}
