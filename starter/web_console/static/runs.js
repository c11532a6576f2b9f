/** The list of runs, and the inbox of all that waits for people. */
import { Component, html, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact-standalone.js";
import { get } from "./api.js";
import { Decision, DecisionExcerpt, DecisionTitle } from "./acts.js";
import { Duration, Empty, ErrorText, Loading, Money, Phase, Time, Tokens, count, number, usePolled, useId, visible } from "./ui.js";

const INTERVAL = 2000;
const PROGRESS_INTERVAL = 2500;
const PAGE = 300;
const MAX_PROGRESS = 100;

/** The most runs of a list in the page; filters find older ones. */
const MAX_LISTED = 5_000;

/** The most that the inbox shows before somebody wants to see all. */
const FIRST_WAITS = 5;

/** The rows beyond the visible ones that are there as well, so that the focus and the eye find them. */
const OVERSCAN = 12;

const PHASES = ["Running", "InputRequired", "Paused", "Waiting", "Completed", "Failed", "Canceled"];
const PHASE_LABELS = { InputRequired: "Waits for you", Waiting: "Waits for a server" };
const STRATEGIES = ["sequential", "round-robin", "selector", "graph", "parallel", "debate", "handoff"];
const SPANS = { 3600: "The last hour", 86400: "The last day", 604800: "The last 7 days", 2592000: "The last 30 days" };
const FILTERS = ["text", "team", "strategy", "phase", "since", "caller"];

/** The page: what waits for people, and the runs that fit the filters in the address. */
export function RunsPage({ query }) {
  return html`
    <${Inbox} />
    <${RunList} query=${query} />`;
}

/** Everything that waits for people, the oldest first. */
function Inbox() {
  const { value, error, reload } = usePolled((signal) => get("/inbox", {}, { signal }), INTERVAL);
  const [kept, setKept] = useState({});
  const [showsAll, setShowsAll] = useState(false);
  const waiting = [...(value?.waiting ?? [])].sort((one, other) => (one.decision.since < other.decision.since ? -1 : 1));
  const listed = new Set(waiting.map((each) => each.decision.id));
  // A decided one stays until the page is left, so that what was done can be read.
  const decided = Object.values(kept).filter((each) => !listed.has(each.decision.id));
  const all = [...decided, ...waiting];
  const open = waiting.filter((each) => !kept[each.decision.id]).length;
  useEffect(() => {
    document.title = `${open ? `(${open}) ` : ""}Runs · Baton`;
  }, [open]);
  const onDone = (item) => {
    setKept((before) => ({ ...before, [item.decision.id]: item }));
    reload();
  };
  return html`
    <div class="visually-hidden" role="status">${open ? `${count(open, "decision waits", "decisions wait")} for you.` : ""}</div>
    ${error && html`<${ErrorText} error=${error} />`}
    ${all.length > 0 && html`
      <section class="inbox" aria-labelledby="inbox-title">
        <h2 id="inbox-title">Waits for you ${open > 0 && html`<span class="badge badge-warn">${number(open)}</span>`}</h2>
        <ul class="stack">
          ${(showsAll ? all : all.slice(0, FIRST_WAITS + decided.length)).map((item) => html`<${InboxItem} key=${item.decision.id} item=${item} isOpen=${waiting.length === 1} onDone=${() => onDone(item)} />`)}
        </ul>
        ${!showsAll && all.length > FIRST_WAITS + decided.length && html`
          <p class="actions more"><button type="button" onClick=${() => setShowsAll(true)}>Show all ${number(all.length)}</button></p>`}
      </section>`}`;
}

function InboxItem({ item, isOpen: startsOpen, onDone }) {
  const [isOpen, setOpen] = useState(startsOpen);
  const id = useId();
  const { decision, root, refusal } = item;
  return html`
    <li class="card inbox-item">
      <div class="inbox-head">
        <div class="inbox-what"><h3 id=${id}><${DecisionTitle} decision=${decision} /></h3>${!isOpen && html`<${DecisionExcerpt} decision=${decision} />`}</div>
        <span class="small muted"><${Time} at=${decision.since} /> · <a href=${`#/runs/${encodeURIComponent(root)}`}><bdi>${visible(shortened(root))}</bdi></a></span>
        <button type="button" aria-expanded=${isOpen ? "true" : "false"} aria-describedby=${id} onClick=${() => setOpen(!isOpen)}>${isOpen ? "Fold" : "Decide"}</button>
      </div>
      ${isOpen && html`<${Decision} decision=${decision} run=${root} refusal=${refusal} onDone=${onDone} />`}
    </li>`;
}

/** The id of a run without its random end. */
function shortened(id) {
  return id.replace(/-[0-9a-f]{36}$/, "");
}

/** The filters in a route's query, as `GET /runs` takes them. */
function parametersOf(query) {
  const { text, team, strategy, phase, since, caller } = query;
  const seconds = Number(since);
  const startedAfter = seconds > 0 ? new Date(Date.now() - seconds * 1000).toISOString() : undefined;
  return { text, team, strategy, phase, caller, startedAfter };
}

/** The newest runs that fit the filters, again and again, and those before them as far as `readOn` was called. */
function useRuns(filters) {
  const key = JSON.stringify(filters);
  const newest = usePolled(
    async (signal) => ({ key, ...(await get("/runs", { limit: PAGE, ...parametersOf(filters) }, { signal })) }), INTERVAL, [key],
  );
  const [read, setRead] = useState({});
  const { value } = newest;
  const older = read.key === key ? read : { key, runs: [], before: value?.key === key ? value.before : null };
  const change = (next) => setRead((now) => (now.key === key ? { ...now, ...next(now) } : now));
  useEffect(() => {
    if (value?.key !== key) return;
    change((now) => {
      const known = new Set(now.runs.map((run) => run.id));
      // Nothing is older than the newest page; or there may be others between it and what was read.
      if (!value.before || (value.runs.length && !value.runs.some((run) => known.has(run.id)))) return { key: null };
      // What newer runs push out of the page of the newest ones stays in the list.
      return bounded([...value.runs, ...now.runs], now.before);
    });
  }, [value]);
  const readOn = async () => {
    setRead({ ...older, runs: withoutDoubles([...value.runs, ...older.runs]), isLoading: true, error: null });
    try {
      const page = await get("/runs", { limit: PAGE, ...parametersOf(filters), before: older.before });
      change((now) => ({ ...(now.before === older.before ? bounded([...now.runs, ...page.runs], page.before) : {}), isLoading: false }));
    } catch (error) {
      change(() => ({ error, isLoading: false }));
    }
  };
  /** Reads the runs with these ids again, which have ended; those that no longer fit leave the list. */
  const readEnded = async (ids, signal) => {
    const isNewest = new Set(value.runs.map((run) => run.id));
    const ended = new Map(older.runs.filter((run) => ids.has(run.id) && !isNewest.has(run.id)).map((run) => [run.id, run]));
    if (!ended.size) return;
    const starts = [...ended.values()].map((run) => Date.parse(run.startTime));
    const span = { startedAfter: timeOf(Math.min(...starts)), startedBefore: timeOf(Math.max(...starts) + 1_000) };
    const page = await get("/runs", { limit: PAGE, ...parametersOf(filters), ...span }, { signal });
    const fitting = new Map(page.runs.map((run) => [run.id, run]));
    const isRead = (run) => !page.before || Date.parse(run.startTime) > Date.parse(page.before);
    change((now) => ({
      runs: now.runs.flatMap((run) => fitting.get(run.id) ?? (ended.has(run.id) && isRead(run) ? [] : [run])),
    }));
  };
  const end = value?.runs.at(-1)?.startTime;
  const runs = withoutDoubles([...(value?.runs ?? []), ...older.runs.filter((run) => !end || run.startTime <= end)]);
  return { ...newest, runs, older, readOn, readEnded };
}

const timeOf = (milliseconds) => new Date(milliseconds).toISOString();

/** At most MAX_LISTED runs of a list, and the place before which others are; null if those are no longer listed. */
function bounded(listed, before) {
  const runs = withoutDoubles(listed);
  const isCut = runs.length > MAX_LISTED;
  return isCut ? { runs: runs.slice(0, MAX_LISTED), before: null, isCut } : { runs, before };
}

/** The runs, of those with the same id the first. */
function withoutDoubles(runs) {
  const ids = new Set();
  return runs.filter((run) => !ids.has(run.id) && ids.add(run.id));
}

function RunList({ query }) {
  const filters = Object.fromEntries(FILTERS.filter((name) => query[name]).map((name) => [name, query[name]]));
  const { value, runs, older, readOn, readEnded, error, isLoading, reload } = useRuns(filters);
  const known = useKnown(runs);
  const set = (name, wanted) => {
    const next = new URLSearchParams(Object.entries({ ...filters, [name]: wanted }).filter(([, each]) => each));
    location.hash = next.size ? `#/?${next}` : "#/";
  };
  const isFiltered = Object.keys(filters).length > 0;
  return html`
    <section aria-labelledby="runs-title">
      <div class="page-head">
        <h1 id="runs-title">Runs</h1>
        <a class="button primary" href="#/start">Start a run</a>
      </div>
      <${Filters} filters=${filters} known=${known} onChange=${set} />
      <${ErrorText} error=${error} retry=${value ? undefined : reload} />
      ${!value && isLoading && html`<${Loading} what="the runs" />`}
      ${value && !runs.length && (isFiltered
        ? older.before ? html`<p class="muted">None of the newest runs fits.</p>` : html`<${Empty} title="No run fits"><a href="#/">Show all runs</a>, or change the filters.<//>`
        : html`<${Empty} title="No runs yet"><a href="#/start">Start the first one</a>, or run <code>baton run -f FILE</code> where this gateway's server is used.<//>`)}
      ${runs.length > 0 && html`<${Rows} runs=${runs} onEnded=${readEnded} />`}
      ${older.error && html`<${ErrorText} error=${older.error} />`}
      ${older.isCut && html`<p class="muted more">These are the newest ${number(MAX_LISTED)} runs. Filters find older ones.</p>`}
      ${older.before && html`
        <p class="actions more"><button type="button" disabled=${older.isLoading} onClick=${readOn}>Show older</button></p>`}
    </section>`;
}

/** The teams and callers that have been seen in lists, and the teams that may be asked: what filters offer. */
function useKnown(runs) {
  const seen = useRef({ teams: new Set(), callers: new Set() });
  const targets = usePolled((signal) => get("/targets", {}, { signal }), null);
  for (const run of runs) {
    if (run.team) seen.current.teams.add(run.team);
    if (run.caller) seen.current.callers.add(run.caller);
  }
  const served = (targets.value?.targets ?? []).filter((target) => target.kind === "team").map((target) => target.name);
  return {
    teams: [...new Set([...served, ...seen.current.teams])].sort(),
    callers: [...seen.current.callers].sort(),
  };
}

function Filters({ filters, known, onChange }) {
  const [text, setText] = useState(filters.text ?? "");
  const timer = useRef(null);
  useEffect(() => setText(filters.text ?? ""), [filters.text]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const search = (event) => {
    const wanted = event.currentTarget.value;
    setText(wanted);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onChange("text", wanted.trim()), 300);
  };
  const select = (name, label, all, options) => html`
    <select aria-label=${label} value=${filters[name] ?? ""} data-set=${filters[name] ? "true" : undefined} onChange=${(event) => onChange(name, event.currentTarget.value)}>
      <option value="">${all}</option>
      ${withChosen(options, filters[name]).map(([value, shown]) => html`<option key=${value} value=${value}>${visible(shown)}</option>`)}
    </select>`;
  return html`
    <form class="filters" role="search" aria-label="Runs" onSubmit=${(event) => event.preventDefault()}>
      <input type="search" aria-label="Text" class="filter-text" dir="auto" placeholder="Search questions, teams and ids" value=${text} onInput=${search} />
      ${select("phase", "Phase", "Any phase", PHASES.map((phase) => [phase, PHASE_LABELS[phase] ?? phase]))}
      ${select("team", "Team", "Any team", known.teams.map((team) => [team, team]))}
      ${select("strategy", "Strategy", "Any strategy", STRATEGIES.map((strategy) => [strategy, strategy]))}
      ${select("since", "Started", "Any time", Object.entries(SPANS))}
      ${select("caller", "Started by", "Anyone", known.callers.map((caller) => [caller, caller]))}
    </form>`;
}

/** The options with the chosen one, which the address may have although it is not known here. */
function withChosen(options, chosen) {
  return !chosen || options.some(([value]) => value === chosen) ? options : [...options, [chosen, chosen]];
}

/** The rows of a list, of which only those are in the page that can be seen. All are equally high. */
function Rows({ runs, onEnded }) {
  const ref = useRef(null);
  const [height, setHeight] = useState(72);
  const [range, setRange] = useState([0, 40]);
  useEffect(() => {
    let frame = null;
    const measure = () => {
      frame = null;
      const row = Number.parseFloat(getComputedStyle(ref.current).getPropertyValue("--row-height")) * 16 || 72;
      const top = -ref.current.getBoundingClientRect().top;
      const first = Math.max(0, Math.floor(top / row) - OVERSCAN);
      const last = Math.ceil((top + innerHeight) / row) + OVERSCAN;
      setHeight(row);
      setRange((before) => (before[0] === first && before[1] === last ? before : [first, last]));
    };
    const later = () => { frame ??= requestAnimationFrame(measure); };
    measure();
    addEventListener("scroll", later, { passive: true });
    addEventListener("resize", later);
    return () => {
      cancelAnimationFrame(frame);
      removeEventListener("scroll", later);
      removeEventListener("resize", later);
    };
  }, []);
  const first = Math.min(range[0], Math.max(0, runs.length - 1));
  const shown = runs.slice(first, range[1]);
  const progress = useProgress(shown, onEnded);
  return html`
    <ul class="runs" ref=${ref} style=${{ blockSize: `${runs.length * height}px` }}>
      ${shown.map((run, index) => html`
        <${Row} key=${run.id} run=${run} progress=${progress[run.id]} index=${first + index} size=${runs.length} top=${(first + index) * height} />`)}
    </ul>`;
}

/** How far the shown runs are, by their ids. Ended runs are asked for once; `onEnded` gets those that the list shows as open. */
function useProgress(runs, onEnded) {
  const known = useRef({});
  const ids = runs.map((run) => run.id).join(",");
  const states = useMemo(() => Object.fromEntries(runs.map((run) => [run.id, run.completionTime ? "ended" : "open"])), [ids, runs]);
  const current = useRef(states);
  current.current = states;
  const whenEnded = useRef(onEnded);
  whenEnded.current = onEnded;
  usePolled(async (signal) => {
    const wanted = Object.keys(current.current)
      .filter((id) => current.current[id] === "open" || !known.current[id]?.isFinal)
      .slice(0, MAX_PROGRESS);
    if (!wanted.length) return known.current;
    const { runs: found } = await get("/progress", { runs: wanted.join(",") }, { signal });
    for (const each of found) {
      known.current[each.id] = { ...each, isFinal: !["Running", "InputRequired", "Waiting", "Paused"].includes(each.phase) };
    }
    const ended = wanted.filter((id) => current.current[id] === "open" && known.current[id]?.isFinal);
    if (ended.length) await whenEnded.current(new Set(ended), signal);
    return { ...known.current };
  }, PROGRESS_INTERVAL, [ids]);
  return known.current;
}

/** A run in the list. It is rendered again only if something about it has changed. */
class Row extends Component {
  shouldComponentUpdate(next) {
    const { run, progress, index, size, top } = this.props;
    return top !== next.top || index !== next.index || size !== next.size || progress !== next.progress
      || JSON.stringify({ ...run, durationSeconds: 0 }) !== JSON.stringify({ ...next.run, durationSeconds: 0 });
  }

  render({ run, progress = {}, index, size, top }) {
    const cost = run.cost ?? progress.cost;
    const phase = run.completionTime ? endOf(run, progress) : progress.phase ?? run.state;
    const target = run.team ?? run.name;
    const title = run.question || target || run.id;
    return html`
      <li class="run-row" style=${{ insetBlockStart: `${top}px` }} aria-setsize=${size} aria-posinset=${index + 1}>
        <a class="run-link" href=${`#/runs/${encodeURIComponent(run.id)}`} title=${visible(run.id)}><span class="one-line" dir="auto">${visible(title)}</span></a>
        <span class="run-phase"><${Phase} phase=${phase} /></span>
        <span class="run-who one-line small muted">
          <bdi>${visible(target ?? "")}</bdi>${run.strategy ? ` · ${run.strategy}` : ""}${run.caller ? html` · by <bdi>${visible(run.caller)}</bdi>` : ""}
        </span>
        <span class="run-numbers small muted">
          ${progress.waits > 0 && html`<span class="waits">${count(progress.waits, "wait")}</span>`}
          ${progress.turns > 0 && html`<span class="number">${count(progress.turns, "turn")}</span>`}
          ${progress.tokens > 0 && html`<span><${Tokens} value=${progress.tokens} /> tokens</span>`}
          ${cost > 0 && html`<${Money} value=${cost} />`}
        </span>
        <span class="run-time small muted"><${Time} at=${run.startTime} /><span class="run-duration"><${Duration} start=${run.startTime} end=${run.completionTime} /></span></span>
      </li>`;
  }
}

/** The phase of a run that has ended: of its status if that is known, since Temporal calls some ends otherwise. */
function endOf(run, progress) {
  return progress.isFinal ? progress.phase : run.state;
}
