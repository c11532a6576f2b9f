/** Two runs side by side: where they part, and what each of them has done from there. */
import { html, useState } from "./vendor/htm-preact-standalone.js";
import { get } from "./api.js";
import { ErrorText, Field, Folded, Loading, Money, Phase, Speaker, Tokens, Words, count, duration, useLoaded, visible } from "./ui.js";

const FIRST = 100; // pairs of steps that are shown until somebody asks for the rest

const address = (id) => `#/runs/${encodeURIComponent(id)}`;

/** The page of the runs `a` and `b`. Without `b` it asks for it. */
export function ComparePage({ a, b }) {
  return b ? html`<${Comparison} a=${a} b=${b} />` : html`<${Choose} a=${a} />`;
}

function Choose({ a }) {
  const submit = (event) => {
    event.preventDefault();
    const other = new FormData(event.currentTarget).get("other").trim();
    if (other) location.hash = `#/compare/${encodeURIComponent(a)}/${encodeURIComponent(other)}`;
  };
  return html`
    <div class="narrow stack">
      <div class="page-head"><h1>Compare runs</h1></div>
      <p>The first one is <a href=${address(a)}><bdi>${visible(a)}</bdi></a>.</p>
      <form class="stack" onSubmit=${submit}>
        <${Field} label="Id of the other run" hint="It is at the top of the page of the run.">
          ${(field) => html`<input ...${field} name="other" required autocomplete="off" spellcheck=${false} />`}
        <//>
        <div class="actions"><button type="submit" class="primary">Compare</button></div>
      </form>
    </div>`;
}

function Comparison({ a, b }) {
  const [isWhole, setWhole] = useState(false);
  const path = `/runs/${encodeURIComponent(a)}/diff/${encodeURIComponent(b)}`;
  const { value, error, reload } = useLoaded((signal) => get(path, {}, { signal }), [path]);
  if (!value) return error ? html`<${ErrorText} error=${error} retry=${reload} />` : html`<${Loading} what="both runs" />`;
  const pairs = value.pairs ?? [];
  const shown = isWhole ? pairs : pairs.slice(0, FIRST);
  return html`
    <div class="compare">
      <div class="page-head"><h1>Two runs</h1>
        <span class="actions"><a class="button" href=${`#/compare/${encodeURIComponent(b)}/${encodeURIComponent(a)}`}>Swap</a><button type="button" onClick=${reload}>Read again</button></span></div>
      <div class="compared"><${Run} run=${value.a} other=${value.b} title="First run" /><${Run} run=${value.b} other=${value.a} title="Second run" /></div>
      <p class="note-line">${summary(value)}</p>
      ${pairs.length > 0 && html`
        <ol class="steps" aria-label="The steps from there on">
          ${shown.map((pair, index) => html`
            <li key=${index}>
              <p class="differs small">${pair.differsIn ? html`<span class="badge">${DIFFERS[pair.differsIn] ?? pair.differsIn}</span>` : html`<span class="badge">the same</span>`}</p>
              <${Step} step=${pair.a} of="first" /><${Step} step=${pair.b} of="second" />
            </li>`)}
        </ol>
        ${shown.length < pairs.length && html`<p class="edge-note"><button type="button" onClick=${() => setWhole(true)}>Show ${count(pairs.length - shown.length, "more step")}</button></p>`}
        ${value.truncated && html`<p class="edge-note">Only the first ${count(pairs.length, "step")} from there on are compared. <code>baton diff</code> prints all.</p>`}`}
    </div>`;
}

const DIFFERS = {
  speaker: "other speakers", words: "other words", tool: "other tools", arguments: "other arguments", result: "other results",
  place: "other places", additional: "only in one run", end: "only in one run",
};

const PARTS = {
  speaker: "another speaker follows", words: "the words differ", tool: "another tool is called", arguments: "a tool is called with other arguments",
  result: "a call has another result", place: "another team continues", additional: "one of them has a step that the other one lacks", end: "only one of them continues",
};

/** Where two runs diverge, in a sentence. */
function summary({ shared = 0, equal = 0, differsIn, pairs = [] }) {
  const first = shared && `share their first ${shared === 1 ? "step" : count(shared, "step")}`;
  const common = [first, equal && `${shared ? "then have" : "have"} ${count(equal, "equal step")}`].filter(Boolean).join(", ");
  if (!pairs.length) return `Both runs ${common || "have no steps yet"}. There is no difference.`;
  return `${common ? `Both runs ${common}.` : "They differ from their first step on."} ${differsIn ? `Then ${PARTS[differsIn]}.` : ""}`;
}

function Run({ run, other, title }) {
  const usage = run.usage ?? {};
  const more = (run.usage?.totalTokens ?? 0) - (other.usage?.totalTokens ?? 0);
  return html`
    <section class="card" aria-label=${title}>
      <p class="row"><a href=${address(run.id)}><bdi>${visible(run.id)}</bdi></a><${Phase} phase=${run.phase ?? "Running"} /></p>
      <p class="facts">
        <span>${count(run.messages ?? 0, "message")}</span>
        ${run.toolCalls ? html`<span>${count(run.toolCalls, "tool call")}</span>` : ""}
        <span><${Tokens} value=${usage.totalTokens ?? 0} /> tokens${more > 0 ? html` (+<${Tokens} value=${more} />)` : ""}</span>
        ${usage.cost !== undefined && usage.cost !== null && html`<span><${Money} value=${usage.cost} /></span>`}
        <span>${duration(run.seconds ?? 0)}</span>
        ${run.stopReason && html`<span>${run.stopReason.replaceAll("_", " ")}</span>`}
      </p>
      ${run.error && html`<p class="small"><${Words} text=${run.error} /></p>`}
    </section>`;
}

/** The name of the nested team in which a step is; empty in the run itself and in its targets. */
function nestedIn(place) {
  return place.replace(/^target-\d+\/[^/]+\/?/, "").split("/").at(-1);
}

/** A message or a call of a tool in one of the runs. */
function Step({ step, of }) {
  if (!step) return html`<p class="nothing">Nothing in the ${of} run</p>`;
  const usage = step.usage ?? {};
  return html`
    <div class="step" role="group" aria-label=${`In the ${of} run`}>
      <p class="turn-head">
        <${Speaker} name=${step.speaker} note=${nestedIn(step.place) || undefined} />
        <span class="end facts">
          ${usage.totalTokens ? html`<span><${Tokens} value=${usage.totalTokens} /> tokens</span>` : ""}
          ${usage.cost ? html`<${Money} value=${usage.cost} />` : ""}
          ${step.seconds >= 0.05 && html`<span>${duration(step.seconds)}</span>`}
        </span>
      </p>
      ${step.kind === "tool" ? html`
        <p class="small">calls <code class="words">${visible(step.tool)}</code></p>
        <${Words} as="pre" class="code-block" text=${step.arguments ?? "The arguments are not shown."} />
        ${(step.error ?? step.result) && html`<${Folded} class="small" summary=${step.error ? "Error" : "Result"}><${Words} as="pre" class="code-block" text=${step.error ?? step.result} /><//>`}`
        : html`<div class="said"><${Words} as="div" text=${step.words ?? ""} /></div>`}
    </div>`;
}
