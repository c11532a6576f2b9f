/** What people do: start runs, control them, decide what waits for them, and hold conversations. */
import { html, useEffect, useRef, useState } from "./vendor/htm-preact-standalone.js";
import { events, get, post } from "./api.js";
import { FieldsForm, JsonReply, SchemaForm, indented, isJson, jsonText, parsedArguments, problemOf } from "./forms.js";
import { ActButton, Dialog, Empty, ErrorText, Field, Folded, Loading, Speaker, Time, Words, count, useLoaded, usePolled, visible } from "./ui.js";

/** The path of a run's operation. */
const pathOf = (run, operation) => `/runs/${encodeURIComponent(run)}${operation ? `/${operation}` : ""}`;

const OPEN = new Set(["Running", "InputRequired", "Waiting", "Paused"]);

/** Milliseconds between two readings of the inbox while an exchange of a chat waits. */
const INTERVAL = 2_000;

/**
 * The acts that a run permits. `run` is its id, `status` its status, as `GET /runs/ID` has it. `onDone` is called after
 * each of them.
 */
export function RunActs({ run, status, onDone = () => {} }) {
  const [dialog, setDialog] = useState(null);
  const [error, setError] = useState(null);
  const [sent, setSent] = useState("");
  const postOnce = usePostOnce();
  const act = (operation, body) => async () => {
    await post(pathOf(run, operation), body);
    setDialog(null);
    setSent("");
    onDone();
  };
  const links = html`<${RunLinks} run=${run} conversation=${status.conversationId} />`;
  if (!OPEN.has(status.phase)) return html`<div class="acts row">${links}</div>`;
  return html`
    <div class="acts">
      <${Steer} onSend=${async (text) => {
        await postOnce(pathOf(run, "steer"), { text });
        setSent("The next speaker reads your message.");
        onDone();
      }} />
      <div class="row">
        ${status.paused
          ? html`<${ActButton} onError=${setError} act=${act("resume")}>Resume<//>`
          : html`<${ActButton} onError=${setError} act=${act("pause")}>Pause<//>`}
        <button type="button" onClick=${() => setDialog("end")}>End…</button>
        <button type="button" class="danger" onClick=${() => setDialog("cancel")}>Cancel…</button>
        <span class="end">${links}</span>
      </div>
      <p class="small muted" role="status">${sent}</p>
      <${ErrorText} error=${error} />
      ${dialog === "end" && html`<${EndDialog} onClose=${() => setDialog(null)} onEnd=${(reason, now) => act("terminate", { reason, now })()} />`}
      ${dialog === "cancel" && html`<${CancelDialog} onClose=${() => setDialog(null)} onCancel=${(reason) => act("cancel", { reason })()} />`}
    </div>`;
}

/** Where else a run is shown: in Temporal's UI, and as a trace; a child run, which `isPart`, only in Temporal's UI. */
export function RunLinks({ run, conversation, isPart = false }) {
  const { value } = useLoaded((signal) => get("/console", {}, { signal }));
  if (!value) return null;
  const trace = value.traceLink?.replaceAll("{run}", encodeURIComponent(run))
    .replaceAll("{conversation}", encodeURIComponent(conversation ?? run));
  return html`
    <span class="row small">
      ${value.temporalUi && html`<a href=${`${value.temporalUi}/workflows/${encodeURIComponent(run)}`} target="_blank" rel="noopener noreferrer">Temporal<span aria-hidden="true"> ↗</span></a>`}
      ${!isPart && html`<a href=${`#/compare/${encodeURIComponent(run)}`}>Compare…</a>`}
      ${trace && !isPart && html`<a href=${trace} target="_blank" rel="noopener noreferrer">Trace<span aria-hidden="true"> ↗</span></a>`}
    </span>`;
}

function Steer({ onSend }) {
  const [text, setText] = useState("");
  const [error, setError] = useState(null);
  const send = async () => {
    if (!text.trim()) return;
    await onSend(text);
    setText((now) => (now === text ? "" : now)); // what was written meanwhile stays
  };
  return html`
    <div class="composer">
      <label class="visually-hidden" for="steer">A message into the discussion</label>
      <textarea id="steer" dir="auto" rows="1" placeholder="Say something to the next speaker" value=${text}
        onInput=${(event) => setText(event.currentTarget.value)}></textarea>
      <${ActButton} class="primary" onError=${setError} act=${send} disabled=${!text.trim()}>Send<//>
    </div>
    <${ErrorText} error=${error} />`;
}

function EndDialog({ onClose, onEnd }) {
  const [now, setNow] = useState(false);
  const [reason, setReason] = useState("");
  const [error, setError] = useState(null);
  return html`
    <${Dialog} title="End this run" onClose=${onClose}>
      <fieldset class="stack">
        <legend>When</legend>
        <label class="check"><input type="radio" name="when" checked=${!now} onChange=${() => setNow(false)} /><span>After the present turn</span></label>
        <label class="check"><input type="radio" name="when" checked=${now} onChange=${() => setNow(true)} /><span>Now: what the current speaker is saying is lost</span></label>
      </fieldset>
      <${Reason} value=${reason} onChange=${setReason} hint="It is shown with the result." />
      <${ErrorText} error=${error} />
      <div class="actions">
        <${ActButton} class="primary" onError=${setError} act=${() => onEnd(reason, now)}>End the run<//>
        <button type="button" class="quiet" onClick=${onClose}>Keep it running</button>
      </div>
    <//>`;
}

function CancelDialog({ onClose, onCancel }) {
  const [reason, setReason] = useState("");
  const [error, setError] = useState(null);
  return html`
    <${Dialog} title="Cancel this run" onClose=${onClose}>
      <p>All calls are stopped at once, and the run has no answer. To keep what was said so far as the result, end it instead.</p>
      <${Reason} value=${reason} onChange=${setReason} hint="It is shown with the run." />
      <${ErrorText} error=${error} />
      <div class="actions">
        <${ActButton} class="danger" onError=${setError} act=${() => onCancel(reason)}>Cancel the run<//>
        <button type="button" class="quiet" onClick=${onClose}>Keep it running</button>
      </div>
    <//>`;
}

/** Goes on from a place in a run, such as "3", in a new run, which is shown then. */
export function ForkDialog({ run, at, onClose }) {
  const postOnce = usePostOnce();
  const [text, setText] = useState("");
  const [error, setError] = useState(null);
  const fork = async () => {
    const forked = await postOnce(pathOf(run, "fork"), text.trim() ? { at, say: text } : { at });
    onClose();
    location.hash = `#/runs/${encodeURIComponent(forked.id)}`;
  };
  return html`
    <${Dialog} title="Go on in a new run" onClose=${onClose}>
      <p>${at === "failure"
        ? "The new run begins before the call that failed."
        : html`The new run begins after <code>${visible(at)}</code>.`} It shares the conversation up to there: no call is made again. This run does not change.</p>
      <${Field} label="Say something there (optional)" hint="The next speaker reads it.">
        ${(field) => html`<textarea ...${field} dir="auto" rows="3" value=${text} onInput=${(event) => setText(event.currentTarget.value)}></textarea>`}
      <//>
      <${ErrorText} error=${error} />
      <div class="actions">
        <${ActButton} class="primary" onError=${setError} act=${fork}>Go on<//>
        <button type="button" class="quiet" onClick=${onClose}>Close</button>
      </div>
    <//>`;
}

function Reason({ value, onChange, hint, label = "Reason (optional)" }) {
  return html`
    <${Field} label=${label} hint=${hint}>
      ${(field) => html`<input ...${field} dir="auto" maxlength="1000" value=${value} onInput=${(event) => onChange(event.currentTarget.value)} />`}
    <//>`;
}

/**
 * What waits for a person, with the form to decide it. `decision` is as in `GET /inbox`, and `run` the id of the root
 * run by which it is decided. `refusal` says why the caller may not decide, if so. `onDone` is called once it is decided.
 */
export function Decision({ decision, run, refusal, onDone = () => {} }) {
  const [outcome, setOutcome] = useState(null);
  const form = useRef(null);
  if (decision.decision && !outcome) return html`<p class="done">This was decided${decision.decision.by ? ` by ${visible(decision.decision.by)}` : ""}. The run continues.</p>`;
  if (outcome) return html`<p class="done" role="status">${outcome}</p>`;
  const done = (text) => {
    forgetDrafts(run, decision);
    setOutcome(text);
    onDone();
  };
  const parts = { decision, run, onDone: done };
  return html`
    <div class="decision stack" ref=${form}>
      ${decision.approvers?.length > 0 && html`<p class="small muted">To be decided by ${visible(approversOf(decision))}.${(decision.approvals ?? []).map((each) => ` Approved by ${visible(each.by)}.`).join("")}</p>`}
      ${refusal && html`<p class="note">${visible(refusal)}</p>`}
      ${kindOf(decision) === "question" ? html`<${Question} ...${parts} />` : html`<${Approval} ...${parts} />`}
      ${decision.until && html`<p class="small muted">It waits until <${Time} at=${decision.until} form="date" />.</p>`}
    </div>`;
}

const drafts = new Map();

/** State of the form of a decision that outlives the form: a list folds it, and a long page takes it out of the document. */
function useDraft(run, decision, name, initial) {
  const id = `${run}\n${decision.id}\n${name}`;
  const [value, setValue] = useState(drafts.has(id) ? drafts.get(id) : initial);
  return [value, (next) => {
    drafts.set(id, next);
    setValue(next);
  }];
}

function forgetDrafts(run, decision) {
  for (const id of drafts.keys()) if (id.startsWith(`${run}\n${decision.id}\n`)) drafts.delete(id);
}

/** The kind of a decision, which its JSON leaves out if it is an approval. */
const kindOf = (decision) => decision.kind ?? "approval";

/** Who may decide, in words. */
function approversOf({ approvers }) {
  return approvers.map(({ names = [], groups = [], required = 1, notRequester }) => {
    const who = [...names, ...groups.map((group) => `the group ${group}`)].join(", ");
    const people = required > 1 ? `${required} people${who && ` of ${who}`}` : who || "anyone";
    return notRequester ? `${people}, but not the person who started the run` : people;
  }).join("; and by ");
}

/** What a decision is about, in one sentence. */
export function DecisionTitle({ decision }) {
  const kind = kindOf(decision);
  const speaker = html`<${Speaker} name=${nameOf(decision.speaker)} />`;
  const tool = html`<code class="words">${visible(decision.tool)}</code>`;
  if (kind === "approval") return html`${speaker} wants to call ${tool}`;
  if (kind === "budget") return html`${speaker} has used up its budget`;
  if (kind === "client_tool") return html`${speaker} waits for its client to execute ${tool}`;
  return decision.askedBy ? html`<${Speaker} name=${nameOf(decision.askedBy)} /> asks` : html`${speaker} is asked`;
}

/** The beginning of what a decision is about, in one line, for lists. */
export function DecisionExcerpt({ decision }) {
  const text = kindOf(decision) === "question" ? decision.question : shortArguments(decision);
  return html`<span class="one-line small muted" dir="auto">${visible(text ?? "").replace(/\s+/g, " ").slice(0, 300)}</span>`;
}

/** The arguments of a call, or what a budget is raised by, in words if they are short and exact. */
function shortArguments(decision) {
  const parsed = parsedArguments(decision.arguments ?? "");
  if (!parsed?.isExact) return decision.arguments;
  const words = Object.entries(parsed.value).map(([name, value]) => {
    const label = kindOf(decision) === "budget" ? (BUDGET_LABELS[name] ?? name).split(",")[0].toLowerCase() : name;
    return `${label}: ${typeof value === "string" ? value : JSON.stringify(value)}`;
  });
  return `${kindOf(decision) === "budget" ? "Raise by " : ""}${words.join(" · ")}`;
}

/** The name in the id of a resource, such as `Team/default/NAME`; another name is returned as it is. */
function nameOf(id) {
  return /^[A-Z][A-Za-z0-9]*\/[^/]+\/([^/]+)$/.exec(id)?.[1] ?? id;
}

/** The call, or the amounts of a budget, that is approved or rejected. */
function Approval({ decision: listed, run, onDone }) {
  const isCut = listed.arguments !== undefined && parsedArguments(listed.arguments) === null;
  const loaded = useLoaded(async (signal) => (
    isCut ? (await get(pathOf(run, `decisions/${encodeURIComponent(listed.id)}`), {}, { signal })).decision : listed
  ), [listed.id, isCut]);
  const [isEdited, setEdited] = useDraft(run, listed, "isEdited", false);
  const [edited, setEditedText] = useDraft(run, listed, "edited", null);
  const [reason, setReason] = useDraft(run, listed, "reason", "");
  const [remember, setRemember] = useDraft(run, listed, "remember", false);
  const [error, setError] = useState(null);
  const decision = loaded.value;
  if (!decision) return loaded.error ? html`<${ErrorText} error=${loaded.error} retry=${loaded.reload} />` : html`<${Loading} what="the arguments" />`;
  const isBudget = kindOf(decision) === "budget";
  const isClients = kindOf(decision) === "client_tool";
  const text = decision.arguments ?? "{}";
  const value = parsedArguments(text);
  const call = JSON.stringify(decision.id);
  const approve = async () => {
    const more = { reason, ...(remember ? { remember } : {}) };
    const problem = isEdited ? problemOf(edited) : null;
    if (problem) throw problem;
    // The text of the arguments is sent as it is, so that no number in it loses a digit.
    const changed = isEdited ? `,"arguments":${edited}` : "";
    const { decision: made } = await post(pathOf(run, "approve"), `{"call":${call},${JSON.stringify(more).slice(1, -1)}${changed}}`);
    if (made.missing) onDone(`Approved. It waits for ${made.missing} more ${made.missing === 1 ? "person" : "people"}.`);
    else onDone(isBudget ? "The budget is raised. The run continues." : `Approved${isEdited ? " with other arguments" : ""}. The run continues.`);
  };
  const reject = async () => {
    await post(pathOf(run, "reject"), { call: decision.id, reason, ...(remember ? { remember } : {}) });
    onDone(isBudget ? "The budget stays as it is." : "Rejected. The run continues.");
  };
  const edit = () => {
    setEditedText(jsonText(text));
    setEdited(true);
  };
  return html`
    ${decision.question && html`<${Words} as="p" text=${decision.question} />`}
    ${isBudget && html`<p>It is raised by these amounts, unless you choose others:</p>`}
    ${value === null && html`
      <p class="note">The arguments are longer than 100,000 bytes, so they can't be shown whole here. You can reject the call, or approve it with arguments that you write yourself.</p>
      <pre class="code-block" dir="auto" tabindex="0" aria-label="The beginning of the arguments">${visible(text)}</pre>`}
    ${value !== null && !isEdited && html`<${Arguments} text=${text} labels=${isBudget ? BUDGET_LABELS : {}} />`}
    ${isEdited && html`<${FieldsForm} text=${edited} onChange=${setEditedText} labels=${isBudget ? BUDGET_LABELS : {}} />`}
    ${isClients ? html`<p class="muted">The program that started this run executes the tool and gives the result.</p>` : html`
      <${Reason} value=${reason} onChange=${setReason} label=${isBudget ? "Reason (optional)" : "Reason (optional, the model reads it if you reject)"} />
      ${decision.rule && !isBudget && !decision.approvers?.length && html`
        <label class="check"><input type="checkbox" checked=${remember} onChange=${(event) => setRemember(event.currentTarget.checked)} />
          <span>Decide all later calls of this tool in this run the same way</span></label>`}
      <${ErrorText} error=${error?.message ?? null} />
      <div class="actions">
        ${(value !== null || isEdited) && html`<${ActButton} class="primary" onError=${setError} act=${approve}>${isBudget ? "Raise the budget" : isEdited ? "Approve with these arguments" : "Approve"}<//>`}
        <${ActButton} class="danger" onError=${setError} act=${reject}>${isBudget ? "Do not raise it" : "Reject"}<//>
        ${isEdited
          ? html`<button type="button" class="quiet" onClick=${() => setEdited(false)}>Discard the changes</button>`
          : html`<button type="button" class="quiet" onClick=${value === null ? () => { setEditedText("{}"); setEdited(true); } : edit}>${isBudget ? "Change the amounts" : "Edit the arguments"}</button>`}
      </div>`}`;
}

const BUDGET_LABELS = { tokens: "Tokens", cost: "Cost in US dollars", modelCalls: "Model calls", toolCalls: "Tool calls", duration: "Time, such as 10m" };

/** All arguments of a call, each whole. A text is shown with its line breaks, everything else as JSON. */
function Arguments({ text, labels = {} }) {
  const { value, isExact } = parsedArguments(text);
  const names = isExact ? Object.keys(value) : [];
  if (!isExact) return html`<pre class="code-block whole" dir="auto">${visible(indented(text))}</pre>`;
  if (!names.length) return html`<p class="muted">The call has no arguments.</p>`;
  return html`
    <dl class="arguments">
      ${names.map((name) => html`
        <div key=${name}>
          <dt><bdi>${visible(labels[name] ?? name)}</bdi></dt>
          <dd><${Words} as="pre" text=${typeof value[name] === "string" ? value[name] : JSON.stringify(value[name], null, 2)} /></dd>
        </div>`)}
    </dl>`;
}

const SCHEMA_IN_TEXT = "Reply with JSON that matches this schema: "; // as in activities/people.py

/** A question to a person, or of a server, with the form for its reply. */
function Question({ decision, run, onDone }) {
  const [reply, setReply] = useDraft(run, decision, "reply", "");
  const [error, setError] = useState(null);
  const schema = decision.replySchema ?? decision.outputSchema;
  const isTyped = Boolean(schema) || (!decision.askedBy && decision.question?.split("\n\n").some((part) => part.startsWith(SCHEMA_IN_TEXT)));
  const send = async (declines) => {
    if (!declines && !reply.trim()) throw new Error("Write a reply first.");
    if (!declines && isTyped && !isJson(reply)) throw new Error("The reply is not JSON yet.");
    await post(pathOf(run, "reply"), { text: declines ? "" : reply, to: decision.id, ...(declines ? { declines } : {}) });
    onDone(declines ? "Declined. The run continues." : "Your reply was sent. The run continues.");
  };
  // The form is the schema: the text has it for those who see no form.
  const asked = schema ? decision.question?.split("\n\n").filter((part) => !part.startsWith(SCHEMA_IN_TEXT)).join("\n\n") : decision.question;
  return html`
    ${asked && html`<${Words} as="p" class="question" text=${asked} />`}
    ${schema
      ? html`<${SchemaForm} schema=${schema} text=${reply} onChange=${setReply} />`
      : isTyped ? html`
        <p class="muted small">The schema of the reply is too long for a form. The question shows its beginning; the reply is checked against all of it.</p>
        <${JsonReply} text=${reply} onChange=${setReply} />`
      : html`
        <${Field} label="Your reply">
          ${(field) => html`<textarea ...${field} dir="auto" value=${reply} onInput=${(event) => setReply(event.currentTarget.value)}></textarea>`}
        <//>`}
    <${ErrorText} error=${error?.message ?? null} />
    <div class="actions">
      <${ActButton} class="primary" onError=${setError} act=${() => send(false)}>Reply<//>
      ${decision.askedBy && html`<${ActButton} class="quiet" onError=${setError} act=${() => send(true)}>Decline<//>`}
    </div>`;
}

/** The form that starts a run of a team or an agent. */
export function StartPage({ target: asked }) {
  const [wanted, setWanted] = useState(asked);
  const { value, error, reload } = useLoaded((signal) => get("/targets", {}, { signal }));
  if (!value) return error ? html`<${ErrorText} error=${error} retry=${reload} />` : html`<${Loading} what="the teams" />`;
  if (!value.targets.length) {
    return html`
      <${Empty} title="Nothing can be started yet">
        Start a worker with teams and agents, and serve them: label them with <code>baton/serve: "true"</code>, or name their namespace in <code>BATON_GATEWAY_NAMESPACES</code>.
      <//>`;
  }
  const chosen = value.targets.find((target) => target.id === wanted) ?? (wanted ? null : value.targets[0]);
  const choose = (id) => {
    setWanted(id);
    history.replaceState(null, "", `#/start/${id}`); // no new page: what was written stays
  };
  return html`
    <div class="narrow">
      <div class="page-head"><h1>Start a run</h1></div>
      ${wanted && !chosen && html`<${ErrorText} error=${`There is no ${wanted} here, or you may not use it. Choose another one.`} />`}
      <${StartForm} targets=${value.targets} target=${chosen} onTarget=${choose} />
    </div>`;
}

function StartForm({ targets, target, onTarget }) {
  const [text, setText] = useState("");
  const [parameters, setParameters] = useState({});
  const [files, setFiles] = useState([]);
  const [more, setMore] = useState({});
  const [error, setError] = useState(null);
  const postOnce = usePostOnce();
  const start = async () => {
    if (!text.trim()) throw new Error("Write a question first.");
    const known = Object.entries(parameters).filter(([name]) => target.parameters?.includes(name));
    const body = {
      target: target.id,
      input: await withFiles(text, files),
      ...(known.length ? { parameters: Object.fromEntries(known) } : {}),
      ...optional(more),
    };
    const run = await postOnce("/runs", body);
    location.hash = `#/runs/${encodeURIComponent(run.id)}`;
  };
  const set = (name) => (event) => setMore({ ...more, [name]: event.currentTarget.value });
  return html`
    <div class="stack">
      <${Field} label="Team or agent" hint=${target && visible(target.description)}>
        ${(field) => html`
          <select ...${field} value=${target?.id ?? ""} onChange=${(event) => onTarget(event.currentTarget.value)}>
            ${!target && html`<option value="">Choose one</option>`}
            ${["team", "agent"].map((kind) => html`
              <optgroup key=${kind} label=${kind === "team" ? "Teams" : "Agents"}>
                ${targets.filter((each) => each.kind === kind).map((each) => html`<option key=${each.id} value=${each.id}>${visible(each.id.slice(kind.length + 1))}${each.strategy ? ` · ${each.strategy}` : ""}</option>`)}
              </optgroup>`)}
          </select>`}
      <//>
      <${Field} label="Question or task">
        ${(field) => html`<textarea ...${field} dir="auto" rows="5" value=${text} onInput=${(event) => setText(event.currentTarget.value)}></textarea>`}
      <//>
      ${target?.parameters?.map((name) => html`
        <${Field} key=${name} label=${html`Parameter <code>${visible(name)}</code>`}>
          ${(field) => html`<input ...${field} dir="auto" value=${parameters[name] ?? ""} onInput=${(event) => setParameters({ ...parameters, [name]: event.currentTarget.value })} />`}
        <//>`)}
      <${Field} label="Images and files (optional)" hint="Together at most 1 MB.">
        ${(field) => html`<input ...${field} type="file" multiple onChange=${(event) => setFiles([...event.currentTarget.files])} />`}
      <//>
      <${Folded} summary="Limits and conversation">
        <div class="grid-fields">
          <${Field} label="Timeout" hint="Such as 90s, 10m or 2h.">${(field) => html`<input ...${field} value=${more.timeout ?? ""} onInput=${set("timeout")} />`}<//>
          <${Field} label="Tokens" hint="The maximum for the whole run.">${(field) => html`<input ...${field} inputmode="numeric" value=${more.tokens ?? ""} onInput=${set("tokens")} />`}<//>
          <${Field} label="Cost" hint="The most, in US dollars.">${(field) => html`<input ...${field} inputmode="decimal" value=${more.cost ?? ""} onInput=${set("cost")} />`}<//>
          <${Field} label="At a limit">
            ${(field) => html`
              <select ...${field} value=${more.onExceeded ?? "stop"} onChange=${set("onExceeded")}>
                <option value="stop">end with what there is</option>
                <option value="ask">ask for more</option>
                <option value="fail">fail</option>
              </select>`}
          <//>
          <${Field} label="Conversation" hint="A name, to continue it later.">${(field) => html`<input ...${field} dir="auto" value=${more.conversation ?? ""} onInput=${set("conversation")} />`}<//>
        </div>
      <//>
      <${ErrorText} error=${error?.message ?? null} />
      <div class="actions">
        <${ActButton} class="primary" onError=${setError} act=${start} disabled=${!target}>Start<//>
        ${target && html`<a class="button" href=${`#/chat/${target.id}`}>Chat instead</a>`}
      </div>
    </div>`;
}

/** The fields of a start that are given. */
function optional({ timeout, tokens, cost, conversation, onExceeded = "stop" }) {
  const budget = {};
  if (tokens) budget.tokens = wholeNumber(tokens, "The limit of tokens");
  if (cost) budget.cost = positive(cost, "The limit of the cost");
  const given = {};
  if (timeout) given.timeout = timeout.trim();
  if (conversation) given.conversation = conversation;
  if (Object.keys(budget).length) given.budget = onExceeded === "stop" ? budget : { ...budget, onExceeded };
  return given;
}

function wholeNumber(text, what) {
  const value = Number(text);
  if (!Number.isSafeInteger(value) || value < 1) throw new Error(`${what} has to be a whole number above 0.`);
  return value;
}

function positive(text, what) {
  const value = Number(text);
  if (!(value > 0)) throw new Error(`${what} has to be a number above 0, such as 0.5.`);
  return value;
}

const MAX_FILES = 1_000_000;

/** The input of a run: the text, or a message with the text and the files. */
async function withFiles(text, files) {
  if (!files.length) return text;
  const size = files.reduce((sum, file) => sum + file.size, 0);
  if (size > MAX_FILES) throw new Error("The files are larger than 1 MB together. Give the run a link to them instead.");
  const parts = await Promise.all(files.map(async (file) => {
    // Models take texts only as texts.
    if (isText(file)) return { type: "text", text: `${file.name}:\n${await file.text()}` };
    const url = await dataUrl(file);
    return file.type.startsWith("image/")
      ? { type: "image_url", image_url: { url } }
      : { type: "file", file: { file_data: url, filename: file.name } };
  }));
  return [{ role: "user", content: [{ type: "text", text }, ...parts] }];
}

function isText(file) {
  return /^text\/|[/+](json|yaml|xml)$/.test(file.type) || /\.(md|txt|csv|ya?ml|json|toml|log)$/i.test(file.name);
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`The file ${file.name} can't be read.`));
    reader.readAsDataURL(file);
  });
}

/** 128 random bits as text. `crypto.randomUUID` exists only on pages of https. */
function randomId() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Posts a body. The same one sent again, as after a lost response, has the same key, so it starts no second run. */
function usePostOnce() {
  const last = useRef({ sent: null, key: null });
  return async (path, body) => {
    const sent = JSON.stringify([path, body]);
    if (last.current.sent !== sent) last.current = { sent, key: randomId() };
    const answer = await post(path, body, { headers: { "idempotency-key": last.current.key } });
    last.current = { sent: null, key: null };
    return answer;
  };
}

/** A conversation with a team or an agent: each question is a run that continues it. */
export function ChatPage({ target }) {
  const [chat, setChat] = useState(() => storedChat(target));
  const [text, setText] = useState("");
  const [error, setError] = useState(null);
  const [isAnswering, setAnswering] = useState(chat.runs.length > 0); // the last one of a page that was loaded again
  const postOnce = usePostOnce();
  useEffect(() => sessionStorage.setItem(`baton.chat.${target}`, JSON.stringify(chat)), [chat]);
  const ask = async () => {
    if (!text.trim()) return;
    const run = await postOnce("/runs", { target, input: text, conversation: chat.conversation });
    setChat((before) => ({ ...before, runs: [...before.runs, { id: run.id, question: text }] }));
    setText((now) => (now === text ? "" : now));
    setAnswering(true);
  };
  const onKey = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      event.currentTarget.form.querySelector("button").click();
    }
  };
  const name = target.split("/").slice(1).join("/");
  return html`
    <div class="chat narrow">
      <div class="page-head">
        <h1><bdi>${visible(name)}</bdi></h1>
        ${chat.runs.length > 0 && html`<button type="button" class="quiet" disabled=${isAnswering} onClick=${() => setChat(newChat())}>New conversation</button>`}
      </div>
      ${!chat.runs.length && html`<${Empty} title="Ask something">Each question continues the conversation. Every answer is a run, which you can open.<//>`}
      <div class="stack" role=${chat.runs.length ? "feed" : undefined} aria-label=${chat.runs.length ? "Conversation" : undefined} aria-busy=${isAnswering ? "true" : "false"}>
        ${chat.runs.map((run, index) => html`<${Exchange} key=${run.id} run=${run} onEnd=${index === chat.runs.length - 1 ? () => setAnswering(false) : () => {}} />`)}
      </div>
      <form class="composer" onSubmit=${(event) => event.preventDefault()}>
        <label class="visually-hidden" for="chat-text">Your message</label>
        <textarea id="chat-text" dir="auto" rows="2" placeholder="Your message" value=${text} onKeyDown=${onKey}
          onInput=${(event) => setText(event.currentTarget.value)}></textarea>
        <${ActButton} class="primary" onError=${setError} act=${ask} disabled=${!text.trim() || isAnswering}>Send<//>
      </form>
      <${ErrorText} error=${error} />
    </div>`;
}

const newChat = () => ({ conversation: `chat-${randomId()}`, runs: [] });

/** The conversation with a target in this tab. */
function storedChat(target) {
  try {
    return JSON.parse(sessionStorage.getItem(`baton.chat.${target}`)) ?? newChat();
  } catch {
    return newChat();
  }
}

/** A question of a conversation, and its answer as it is written. */
function Exchange({ run, onEnd }) {
  const [state, setState] = useState({ messages: [], live: {}, waits: [], end: null, connected: true });
  const [error, setError] = useState(null);
  const isWaiting = state.waits.length > 0 && state.end === null;
  // The inbox knows of a wait a moment after the events of the run do.
  const waits = usePolled(async (signal) => {
    if (!isWaiting) return [];
    return (await get("/inbox", {}, { signal })).waiting.filter((each) => each.root === run.id);
  }, isWaiting ? INTERVAL : null, [run.id, isWaiting, state.waits]);
  useEffect(() => {
    const controller = new AbortController();
    (async () => {
      try {
        const onConnection = (connected) => setState((before) => ({ ...before, connected }));
        for await (const event of events(run.id, { signal: controller.signal, onConnection })) {
          setState((before) => after(before, event, run.id));
        }
      } catch (failure) {
        setError(failure);
      }
      if (!controller.signal.aborted) onEnd();
    })();
    return () => controller.abort();
  }, [run.id]);
  const live = Object.values(state.live);
  return html`
    <article class="exchange stack" aria-label=${run.question.slice(0, 80)}>
      <${Words} as="p" class="own" text=${run.question} />
      ${state.messages.map((message) => html`
        <div key=${message.number} class="said"><${Speaker} name=${message.name} /><${Words} as="p" text=${message.text} /></div>`)}
      ${live.map((part) => html`<div key=${part.call} class="said"><${Speaker} name=${part.speaker} /><${Words} as="p" text=${part.text} /></div>`)}
      ${state.end === null && !live.length && !error && html`<p class="muted" role="status">${state.connected ? "Thinking…" : "The connection is lost. Trying again…"}</p>`}
      ${(waits.value ?? []).map((each) => html`
        <div key=${each.decision.id} class="card stack"><h3><${DecisionTitle} decision=${each.decision} /></h3><${Decision} decision=${each.decision} run=${run.id} refusal=${each.refusal} /></div>`)}
      ${state.end?.error && html`<${ErrorText} error=${state.end.error} />`}
      <${ErrorText} error=${error} />
      <p class="small muted"><a href=${`#/runs/${encodeURIComponent(run.id)}`}>Open the run</a>${state.end?.turns ? ` · ${count(state.end.turns, "turn")}` : ""}</p>
    </article>`;
}

/** What leads from a root run to its targets and their members, but not to the runs of tools. */
const MEMBER = /^(?:\/(?:target-\d+|turn-\d+|round-\d+\/[^/]+)\/[^/]+)*$/;

/** Whether a run is the root or its target, whose conversation has everything that is said to the user. */
function isMain(run, root) {
  return run.startsWith(root) && /^(?:\/target-\d+\/[^/]+)?$/.test(run.slice(root.length));
}

const ASKS = ["approval", "question", "budget"]; // the waits that are in the inbox

/** The state of an exchange after an event of its run. */
function after(state, event, root) {
  const call = `${event.run}\n${event.call}`; // the id of a call is unique only in its run
  const { [call]: part, ...others } = state.live;
  switch (event.type) {
    case "text.delta": {
      if (event.tool || !MEMBER.test(event.run.slice(root.length))) return state; // what a tool reports is no answer
      const text = (part?.text ?? "").slice(0, event.offset) + event.text;
      return { ...state, live: { ...state.live, [call]: { call, speaker: event.speaker, text } } };
    }
    case "text.retracted":
    case "model.answered":
    case "model.failed":
      return { ...state, live: others };
    case "message":
      if (!isMain(event.run, root)) return state;
      return { ...state, messages: [...state.messages, { number: event.id, name: event.name, text: event.text }] };
    case "wait.started":
      if (!ASKS.includes(event.kind)) return state;
      return { ...state, waits: [...state.waits, `${event.run}\n${event.wait}`] };
    case "wait.ended":
      return { ...state, waits: state.waits.filter((wait) => wait !== `${event.run}\n${event.wait}`) };
    case "run.ended":
      return event.run === root ? { ...state, live: {}, end: event } : state;
    default:
      return state;
  }
}
