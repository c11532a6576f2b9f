/** The pages of teams: all manifests, one with its drawing and its versions, and the editor that writes to the store. */
import { html, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact-standalone.js";
import { ApiError, get, post, put } from "./api.js";
import { ActButton, Empty, ErrorText, Loading, Time, Words, count, useId, useLoaded, usePolled, visible } from "./ui.js";
import { Graph } from "./graph.js";

const INTERVAL = 5000;
const TYPING_PAUSE = 400;
const MAX_TEXT = 400_000;

/** The kinds in the order of the page; those that are not here follow. Their words are the headings. */
const KINDS = [
  ["Team", "Teams"], ["Agent", "Agents"], ["Query", "Queries"], ["Model", "Models"], ["Tool", "Tools"],
  ["MCPServer", "MCP servers"], ["A2AServer", "A2A servers"], ["ExecutionEngine", "Execution engines"],
  ["Skill", "Skills"], ["Memory", "Memories"], ["ConfigMap", "ConfigMaps"],
];
const WITH_DRAWING = new Set(["Team", "Agent", "Query"]);
const STARTED = new Set(["Team", "Agent"]);

const TEMPLATES = {
  Team: `apiVersion: ark.mckinsey.com/v1alpha1
kind: Team
metadata:
  name: my-team
spec:
  strategy: round-robin
  maxTurns: 2
  members:
    - name: NAME-OF-AN-AGENT
`,
  Agent: `apiVersion: ark.mckinsey.com/v1alpha1
kind: Agent
metadata:
  name: my-agent
spec:
  prompt: |
    You are an expert. Answer in short sentences.
`,
};

const part = encodeURIComponent;
const apiPath = ({ kind, namespace, name }) => `/manifests/${part(kind)}/${part(namespace)}/${part(name)}`;
const pagePath = ({ kind, namespace, name }, query = "") =>
  `#/teams/${part(namespace)}/${part(kind.toLowerCase())}/${part(name)}${query}`;
const targetOf = ({ kind, namespace, name }) =>
  namespace === "default" ? `${kind.toLowerCase()}/${name}` : `${kind.toLowerCase()}/${namespace}/${name}`;

/** Kind, namespace and name of an id such as "Team/default/duo". */
function keyOf(id) {
  const [kind, namespace, ...name] = id.split("/");
  return { kind, namespace, name: name.join("/") };
}

export function TeamsPage({ query }) {
  if (query.new) return html`<${NewManifest} kind=${query.new} />`;
  return html`<${Manifests} />`;
}

function Manifests() {
  const { value, error, reload } = usePolled((signal) => get("/manifests", {}, { signal }), INTERVAL);
  const [words, setWords] = useState("");
  const searchId = useId();
  if (!value) return error ? html`<${ErrorText} error=${error} retry=${reload} />` : html`<${Loading} what="the teams" />`;
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (info) => {
    const text = `${info.kind}/${info.namespace}/${info.name} ${info.strategy ?? ""} ${info.description ?? ""}`.toLowerCase();
    return wanted.every((word) => text.includes(word));
  };
  const shown = value.manifests.filter(fits);
  const known = KINDS.map(([kind]) => kind);
  const others = [...new Set(shown.map((info) => info.kind))].filter((kind) => !known.includes(kind)).map((kind) => [kind, kind]);
  const creatable = (value.canStore && value.creatable) || [];
  return html`
    <div class="page-head">
      <h1>Teams</h1>
      <div class="actions">
        ${["Team", "Agent"].filter((kind) => creatable.includes(kind)).map((kind) => html`
          <a key=${kind} class="button" href=${`#/teams?new=${kind}`}>New ${kind.toLowerCase()}</a>`)}
      </div>
    </div>
    <${ErrorText} error=${error} retry=${reload} />
    ${value.manifests.length > 8 && html`
      <div class="teams-search">
        <label class="visually-hidden" for=${searchId}>Search the manifests</label>
        <input id=${searchId} type="search" placeholder="Search by name, strategy or description" value=${words}
          onInput=${(event) => setWords(event.currentTarget.value)} />
      </div>`}
    ${!value.manifests.length && html`
      <${Empty} title="There are no manifests yet">
        Start a worker with some: <code>baton worker -f FILE</code>. Or put them into the store that all workers
        share: <code>baton apply -f FILE</code>.
      <//>`}
    ${value.manifests.length > 0 && !shown.length && html`<${Empty} title="Nothing fits">No manifest has all of these words.<//>`}
    ${[...KINDS, ...others].map(([kind, title]) => html`
      <${Kind} key=${kind} title=${title} infos=${shown.filter((info) => info.kind === kind)} />`)}
    ${value.more > 0 && html`<p class="muted">${count(value.more, "more manifest is", "more manifests are")} not shown.</p>`}`;
}

function Kind({ title, infos }) {
  if (!infos.length) return null;
  return html`
    <section class="teams-kind" aria-label=${title}>
      <h2>${title} <span class="muted">${infos.length}</span></h2>
      <ul>${infos.map((info) => html`<${Row} key=${info.id} info=${info} />`)}</ul>
    </section>`;
}

function Row({ info }) {
  const facts = [info.strategy, info.members && count(info.members, "member"), info.namespace !== "default" && info.namespace];
  return html`
    <li class="teams-row">
      <a href=${pagePath(info)}><bdi>${visible(info.name)}</bdi></a>
      <span class="muted small">${facts.filter(Boolean).join(" · ")}</span>
      <${Words} class="one-line muted" text=${info.problem ?? info.description ?? ""} />
      <${Source} info=${info} />
    </li>`;
}

/** Where runs get a manifest. */
function Source({ info }) {
  if (info.source !== "store") return html`<span class="badge" title="Runs use the files of workers">${info.source}</span>`;
  return html`
    <span class="small muted end">version ${info.version}${info.changed && html`, <${Time} at=${info.changed} />`}</span>`;
}

export function TeamPage({ namespace, kind, name, query }) {
  const key = { kind, namespace, name };
  const version = query.version ?? null;
  const { value, error, reload } = useLoaded((signal) => get(apiPath(key), { version }, { signal }), [kind, namespace, name, version]);
  if (!value) return error ? html`<${ErrorText} error=${error} retry=${reload} />` : html`<${Loading} what=${name} />`;
  const { info } = value;
  if (query.edit !== undefined && info.writable) {
    return html`<${Editor} title=${`Edit ${info.name}`} text=${value.text} newest=${value.newest} info=${info} />`;
  }
  const isOld = version !== null && Number(version) !== value.newest;
  return html`
    <div class="page-head">
      <h1><bdi>${visible(info.name)}</bdi></h1>
      <div class="actions">
        ${info.writable && html`<a class="button" href=${pagePath(info, version ? `?edit&version=${version}` : "?edit")}>Edit${isOld ? " from this version" : ""}</a>`}
        ${STARTED.has(info.kind) && html`<a class="button primary" href=${`#/start/${targetOf(info)}`}>Start a run</a>`}
      </div>
    </div>
    <p class="facts">
      <span>${info.kind}</span>
      ${info.namespace !== "default" && html`<span>in <b><bdi>${visible(info.namespace)}</bdi></b></span>`}
      ${info.strategy && html`<span><b>${info.strategy}</b></span>`}
      ${info.members > 0 && html`<span>${count(info.members, "member")}</span>`}
      <span>${info.source === "store" ? "from the store" : `from the ${info.source}${/^files$/.test(info.source) ? " of workers" : ""}`}</span>
      ${value.newest > 0 && html`<span>version <b>${version ?? value.newest}</b>${info.changed && html`, changed <${Time} at=${info.changed} />`}</span>`}
    </p>
    ${info.description && html`<${Words} as="p" class="teams-description" text=${info.description} />`}
    ${isOld && html`<p class="note">This is version ${version}. The newest is <a href=${pagePath(info)}>version ${value.newest}</a>.</p>`}
    ${value.warnings.map((text) => html`<p class="note" key=${text}>${text}</p>`)}
    ${WITH_DRAWING.has(info.kind) && html`<${Drawn} path=${apiPath(info)} version=${version} />`}
    <${References} title="Refers to" ids=${value.refersTo} />
    <${References} title="Used by" ids=${value.usedBy} />
    <section>
      <h2>Manifest</h2>
      <pre class="code-block" tabindex="0" dir="auto" aria-label="The manifest as YAML">${visible(value.text)}</pre>
    </section>
    ${value.newest > 0 && html`<${Versions} info=${info} shown=${Number(version ?? value.newest)} query=${query} />`}`;
}

function Drawn({ path, version }) {
  const { value, error } = useLoaded((signal) => get(`${path}/drawing`, { version }, { signal }), [path, version]);
  if (error) return html`<${ErrorText} error=${error} />`;
  return html`<section class="card teams-drawing" aria-label="Drawing">${value ? html`<${Graph} drawing=${value} />` : html`<${Loading} />`}</section>`;
}

/** Links to other manifests. What is not a full id, such as a reference to one of several kinds, is only named. */
function References({ title, ids }) {
  if (!ids.length) return null;
  return html`
    <section class="teams-references">
      <h2>${title}</h2>
      <ul class="row">${ids.map((id) => html`<li key=${id}><${Reference} id=${id} /></li>`)}</ul>
    </section>`;
}

function Reference({ id }) {
  if (!/^[A-Za-z0-9]+\/[^/\s]+\/[^/\s]+$/.test(id)) return html`<${Words} class="muted" text=${id} />`;
  const key = keyOf(id);
  const name = key.namespace === "default" ? key.name : `${key.namespace}/${key.name}`;
  return html`<a href=${pagePath(key)}><span class="muted">${key.kind.toLowerCase()}/</span><bdi>${visible(name)}</bdi></a>`;
}

function Versions({ info, shown, query }) {
  const path = apiPath(info);
  const { value, error } = useLoaded((signal) => get(`${path}/versions`, {}, { signal }), [path, info.version]);
  const fromId = useId();
  const toId = useId();
  if (error) return html`<${ErrorText} error=${error} />`;
  if (!value) return html`<${Loading} what="the versions" />`;
  const readable = value.versions.filter((version) => !version.deleted && !version.problem);
  const numbers = readable.map((version) => version.version);
  const to = Number(query.to ?? shown);
  const from = Number(query.from ?? numbers.find((number) => number < to) ?? numbers.at(-1));
  const choose = (changed) => {
    const chosen = { from, to, ...(query.version && { version: query.version }), ...changed };
    location.hash = pagePath(info, `?${new URLSearchParams(chosen)}`);
  };
  const select = (id, label, value, name) => html`
    <label for=${id}>${label}</label>
    <select id=${id} value=${value} onChange=${(event) => choose({ [name]: event.currentTarget.value })}>
      ${numbers.map((number) => html`<option key=${number} value=${number} selected=${number === value}>${number}</option>`)}
    </select>`;
  return html`
    <section>
      <h2>Versions</h2>
      <ol class="teams-versions">${value.versions.map((version) => html`
        <li key=${version.version} aria-current=${version.version === shown ? "true" : undefined}>
          ${version.deleted || version.problem ? html`<span>Version ${version.version}</span>`
            : html`<a href=${pagePath(info, `?version=${version.version}`)}>Version ${version.version}</a>`}
          <span class="muted small"><${Time} at=${version.changed} />${version.author && html` by <bdi>${visible(version.author)}</bdi>`}</span>
          ${version.deleted && html`<span class="badge">deleted</span>`}
          ${version.problem && html`<${Words} class="muted small" text=${version.problem} />`}
        </li>`)}
      </ol>
      ${numbers.length > 1 && html`
        <h3 class="teams-compare">Difference</h3>
        <div class="row teams-compare-form">${select(fromId, "From version", from, "from")}${select(toId, "to version", to, "to")}</div>
        <${DifferenceOf} path=${path} from=${from} to=${to} />`}
    </section>`;
}

const SIGNS = { added: "+", removed: "−", same: " ", place: "" };

function DifferenceOf({ path, from, to }) {
  const { value, error } = useLoaded((signal) => get(`${path}/difference`, { from, to }, { signal }), [path, from, to]);
  if (error) return html`<${ErrorText} error=${error} />`;
  if (!value) return html`<${Loading} what="the difference" />`;
  if (!value.lines.length) return html`<p class="muted">There is no difference between version ${from} and version ${to}.</p>`;
  return html`
    <div class="difference" role="region" tabindex="0" aria-label=${`From version ${from} to version ${to}`}>
      ${value.lines.map((line, index) => html`<${DifferenceLine} key=${index} line=${line} />`)}
    </div>
    ${value.truncated && html`<p class="muted">The difference is longer than what is shown.</p>`}`;
}

function DifferenceLine({ line }) {
  const tag = { added: "ins", removed: "del" }[line.kind] ?? "span";
  return html`<${tag} class=${`difference-${line.kind}`}><span aria-hidden="true">${SIGNS[line.kind]}</span><code>${visible(line.text)}</code><//>`;
}

function NewManifest({ kind }) {
  const template = TEMPLATES[kind] ?? TEMPLATES.Team;
  return html`<${Editor} title=${`New ${kind.toLowerCase()}`} text=${template} newest=${0} info=${null} />`;
}

/**
 * Edits a manifest: the gateway judges the text while it is written, as `baton apply` would, and draws it.
 * `newest` is the version that is replaced, `info` the manifest, or null for a new one.
 */
function Editor({ title, text: loaded, newest: loadedVersion, info }) {
  const [{ original, newest }] = useState({ original: loaded, newest: loadedVersion }); // what the person has begun with
  const [text, setText] = useState(original);
  const [error, setError] = useState(null);
  const area = useRef(null);
  const id = useId();
  const judged = useJudged(text, info?.namespace ?? "default");
  const isChanged = text !== original;
  useEffect(() => {
    if (!isChanged) return undefined;
    const ask = (event) => event.preventDefault();
    addEventListener("beforeunload", ask);
    return () => removeEventListener("beforeunload", ask);
  }, [isChanged]);
  const back = info ? pagePath(info) : "#/teams";
  const save = async () => {
    const validation = await post("/manifests/validate", { text, namespace: info?.namespace ?? "default" });
    if (validation.problems.length) throw new ApiError("There are errors in the manifest: nothing was written");
    const ids = validation.ids ?? [];
    if (ids.length !== 1) throw new ApiError(`The text has ${count(ids.length, "manifest")}, and has to have one`);
    const key = info ?? keyOf(ids[0]);
    await put(apiPath(key), { text, version: newest });
    setText((written) => written);
    location.hash = pagePath(key);
  };
  const goTo = (line) => {
    const lines = text.split("\n");
    const start = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    area.current.focus();
    area.current.setSelectionRange(start, start + (lines[line - 1]?.length ?? 0));
    area.current.scrollTop = (area.current.scrollHeight / lines.length) * Math.max(0, line - 4);
  };
  const { problems = [], warnings = [], drawing } = judged.value ?? {};
  return html`
    <div class="page-head">
      <h1><bdi>${visible(title)}</bdi></h1>
      <div class="actions">
        <a class="button" href=${back}>Cancel</a>
        <${ActButton} class="primary" act=${save} onError=${setError} disabled=${!isChanged || problems.length > 0 || text.length > MAX_TEXT}>
          Save to the store
        <//>
      </div>
    </div>
    <${ErrorText} error=${error} />
    ${error?.status === 409 && info && html`
      <p class="note">Somebody has changed this manifest meanwhile. <a href=${pagePath(info)}>Look at the newest version</a>,
      and copy what you have written before you leave this page.</p>`}
    <div class="editor">
      <div class="editor-text">
        <label for=${id}>The manifest, as YAML</label>
        <textarea id=${id} ref=${area} class="code" spellcheck=${false} autocapitalize="off" autocomplete="off" dir="ltr"
          rows=${Math.min(40, Math.max(16, original.split("\n").length + 2))} maxlength=${MAX_TEXT} value=${text}
          aria-describedby=${`${id}-judged`} aria-invalid=${problems.length ? "true" : undefined}
          onInput=${(event) => setText(event.currentTarget.value)}></textarea>
      </div>
      <div class="editor-side" id=${`${id}-judged`}>
        <${Judged} judged=${judged} problems=${problems} warnings=${warnings} goTo=${goTo} />
        ${drawing && html`<div class="card teams-drawing"><${Graph} drawing=${drawing} /></div>`}
      </div>
    </div>`;
}

function Judged({ judged, problems, warnings, goTo }) {
  if (judged.error) return html`<${ErrorText} error=${judged.error} />`;
  if (!judged.value) return html`<p class="muted" role="status">Checking…</p>`;
  return html`
    <div role="status" class="stack">
      ${problems.length ? html`<p class="teams-invalid">${count(problems.length, "error")} to mend before it can be stored</p>`
        : html`<p class="done">It can be stored${warnings.length ? `, with ${count(warnings.length, "warning")}` : ""}.</p>`}
      ${(problems.length > 0 || warnings.length > 0) && html`
        <ul class="teams-problems">
          ${problems.map((problem, index) => html`<${Finding} key=${index} finding=${problem} goTo=${goTo} />`)}
          ${warnings.map((warning, index) => html`<${Finding} key=${`w${index}`} finding=${warning} goTo=${goTo} isWarning=${true} />`)}
        </ul>`}
    </div>`;
}

function Finding({ finding, goTo, isWarning = false }) {
  return html`
    <li class=${isWarning ? "is-warning" : "is-error"}>
      ${finding.line && html`<button type="button" class="link" onClick=${() => goTo(finding.line)}>Line ${finding.line}</button>`}
      <span dir="auto">${finding.field && html`<code>${visible(finding.field)}</code> `}${visible(finding.text)}</span>
    </li>`;
}

/** What the gateway says about a text, some time after the last key: `{value, error}`. */
function useJudged(text, namespace) {
  const [state, setState] = useState({ value: null, error: null });
  const isFirst = useRef(true);
  const pause = useMemo(() => (isFirst.current ? 0 : TYPING_PAUSE), [text]);
  useEffect(() => {
    isFirst.current = false;
    const controller = new AbortController();
    const timer = setTimeout(async () => {
      try {
        const value = await post("/manifests/validate", { text, namespace }, { signal: controller.signal });
        setState({ value, error: null });
      } catch (error) {
        if (!controller.signal.aborted) setState({ value: null, error });
      }
    }, pause);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [text, namespace]);
  return state;
}
