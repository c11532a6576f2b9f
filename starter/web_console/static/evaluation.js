/** The report of an evaluation, as `baton eval --save FILE` writes it: read from a file, which stays in this tab. */
import { html, useState } from "./vendor/htm-preact-standalone.js";
import { Empty, ErrorText, Field, Folded, Money, Tokens, Words, count, duration, visible } from "./ui.js";

const MAX_BYTES = 50_000_000;
const SHOWN_CASES = 200; // until somebody asks for the rest

/** Asks for a report, and for an earlier one to compare it with, and shows them. */
export function EvaluationPage() {
  const [report, setReport] = useState(null);
  const [baseline, setBaseline] = useState(null);
  const [error, setError] = useState(null);
  const read = (keep) => async (event) => {
    const [file] = event.currentTarget.files;
    if (!file) return keep(null);
    try {
      keep(await readReport(file));
      setError(null);
    } catch (problem) {
      keep(null);
      setError(problem.message);
    }
  };
  return html`
    <div class="evaluation">
    <div class="page-head"><h1>${report ? html`Evaluation <bdi>${visible(report.name)}</bdi>` : "Evaluation"}</h1></div>
    <div class="row files">
      <${Field} label="Report" hint="A file of baton eval --save. It is not sent anywhere.">
        ${(field) => html`<input ...${field} type="file" accept=".json,application/json" onChange=${read(setReport)} />`}
      <//>
      <${Field} label="Baseline, if you have one" hint="An earlier report of the same cases.">
        ${(field) => html`<input ...${field} type="file" accept=".json,application/json" onChange=${read(setBaseline)} />`}
      <//>
    </div>
    <${ErrorText} error=${error} />
    ${report ? html`<${Report} report=${report} baseline=${baseline} />` : !error && html`
      <${Empty} title="No report yet">
        Run <code>baton eval -f CASES -f MANIFESTS <span class="number">--save FILE</span></code>, and choose the file above.
      <//>`}
    </div>`;
}

/** The report in a file. Throws an Error, whose message is for the reader, for a file that is none. */
async function readReport(file) {
  if (file.size > MAX_BYTES) throw new Error(`${file.name} is larger than ${MAX_BYTES / 1_000_000} MB.`);
  let report;
  try {
    report = JSON.parse(await file.text());
  } catch {
    throw new Error(`${file.name} is not JSON.`);
  }
  if (!Array.isArray(report?.cases)) throw new Error(`${file.name} is not a report: it has no list "cases".`);
  return { name: file.name, failures: [], analyses: [], ...report };
}

/** The mean of each evaluation by its name, over the cases of a report: an assertion is 1 or 0. */
function meansOf({ cases }) {
  const values = new Map();
  for (const each of cases) {
    for (const { name, value } of [...resultsOf(each.assertions), ...resultsOf(each.scores)]) {
      values.set(name, [...(values.get(name) ?? []), Number(value)]);
    }
  }
  return new Map([...values].map(([name, all]) => [name, all.reduce((sum, value) => sum + value, 0) / all.length]));
}

const resultsOf = (results) => Object.entries(results ?? {}).map(([name, result]) => ({ ...result, name }));

function Report({ report, baseline }) {
  const [isWhole, setWhole] = useState(false);
  const shown = isWhole ? report.cases : report.cases.slice(0, SHOWN_CASES);
  return html`
    <p class="note-line"><span>
      ${count(report.cases.length, "case")}${report.failures.length > 0 && `, ${count(report.failures.length, "run")} failed`}
      ${report.dataset_name && html` · dataset <bdi>${visible(report.dataset_name)}</bdi>`}
    </span></p>
    ${baseline && html`<${Changes} now=${meansOf(report)} before=${meansOf(baseline)} />`}
    ${report.analyses.filter((each) => Array.isArray(each.columns) && Array.isArray(each.rows)).map((each, index) => html`<${Analysis} key=${index} ...${each} />`)}
    ${report.failures.length > 0 && html`
      <section aria-label="Failed runs"><h2>Failed runs</h2>
        <ul class="plain stack">${report.failures.map((each, index) => html`
          <li key=${index} class="card"><p><strong><bdi>${visible(each.name)}</bdi></strong></p><p class="small"><${Words} text=${each.error_message ?? ""} /></p></li>`)}
        </ul>
      </section>`}
    <section aria-label="Cases"><h2>Cases</h2>
      <ul class="plain stack">${shown.map((each, index) => html`<${CaseCard} key=${index} one=${each} />`)}</ul>
      ${shown.length < report.cases.length && html`
        <p class="edge-note"><button type="button" onClick=${() => setWhole(true)}>Show ${count(report.cases.length - shown.length, "more case")}</button></p>`}
    </section>`;
}

/** The means of both reports; what has become worse is marked in words. */
function Changes({ now, before }) {
  const names = [...now.keys()].filter((name) => before.has(name));
  if (!names.length) return html`<p class="note-line">The baseline has none of these evaluations.</p>`;
  return html`
    <section aria-label="Compared with the baseline"><h2>Compared with the baseline</h2>
      <div class="scroll" tabindex="0" role="region" aria-label="Means of both reports">
        <table>
          <thead><tr><th scope="col">Evaluation</th><th scope="col">Before</th><th scope="col">Now</th><th scope="col"></th></tr></thead>
          <tbody>${names.map((name) => html`
            <tr key=${name}><th scope="row"><bdi>${visible(name)}</bdi></th><td class="number">${mean(before.get(name))}</td><td class="number">${mean(now.get(name))}</td>
              <td>${now.get(name) < before.get(name) && html`<span class="badge badge-bad">worse</span>`}</td></tr>`)}
          </tbody>
        </table>
      </div>
    </section>`;
}

const mean = (value) => value.toFixed(3);

/** A table of the report, such as the means with their intervals. */
function Analysis({ title, columns, rows }) {
  const hasFractions = columns.map((_, place) => rows.some((row) => typeof row[place] === "number" && !Number.isInteger(row[place])));
  const cell = (value, place) => (typeof value === "number" ? html`<span class="number">${hasFractions[place] ? mean(value) : value}</span>` : visible(String(value ?? "")));
  return html`
    <section aria-label=${title}><h2><bdi>${visible(title)}</bdi></h2>
      <div class="scroll" tabindex="0" role="region" aria-label=${title}>
        <table>
          <thead><tr>${columns.map((name, index) => html`<th key=${index} scope="col">${visible(name)}</th>`)}</tr></thead>
          <tbody>${rows.map((row, index) => html`<tr key=${index}>${row.map((value, place) => html`<td key=${place}>${cell(value, place)}</td>`)}</tr>`)}</tbody>
        </table>
      </div>
    </section>`;
}

/** A case with its answer, what was found about it, and its run. */
function CaseCard({ one }) {
  const { run, stop_reason: reason } = one.attributes ?? {};
  const metrics = one.metrics ?? {};
  const tokens = (metrics.input_tokens ?? 0) + (metrics.output_tokens ?? 0);
  const asked = textOf(one.inputs);
  return html`
    <li class="card">
      <p class="row"><strong><bdi>${visible(one.name)}</bdi></strong>
        ${run && html`<a class="small" href=${`#/runs/${encodeURIComponent(run)}`}>Its run</a>`}
        <span class="end facts">
          ${tokens > 0 && html`<span><${Tokens} value=${tokens} /> tokens</span>`}
          <${Money} value=${metrics.cost} />
          ${one.task_duration !== undefined && html`<span>${duration(one.task_duration)}</span>`}
          ${reason && html`<span>${visible(reason.replaceAll("_", " "))}</span>`}
        </span>
      </p>
      <ul class="plain found">
        ${resultsOf(one.assertions).map((each) => html`<${Found} key=${each.name} ...${each} mark=${each.value ? "✓" : "✗"} says=${each.value ? "holds" : "does not hold"} isBad=${!each.value} />`)}
        ${resultsOf(one.scores).map((each) => html`<${Found} key=${each.name} ...${each} mark=${Number(each.value).toFixed(3)} />`)}
        ${resultsOf(one.labels).map((each) => html`<${Found} key=${each.name} ...${each} mark=${visible(String(each.value))} />`)}
        ${(one.evaluator_failures ?? []).map((each, index) => html`<${Found} key=${index} name=${each.name} reason=${each.error_message} mark="!" says="has failed" isBad />`)}
      </ul>
      <${Folded} class="small" summary="Question"><${Words} as="div" text=${asked} /><//>
      <${Folded} class="small" summary="Answer"><${Words} as="div" text=${textOf(one.output)} /><//>
    </li>`;
}

const textOf = (value) => (typeof value === "string" ? value : JSON.stringify(value ?? null, null, 2));

/** What one evaluator has found, with its reason. */
function Found({ name, mark, says, reason, isBad }) {
  return html`
    <li><span class=${`badge ${isBad ? "badge-bad" : ""}`}>${says ? html`<span aria-hidden="true">${mark}</span><span class="visually-hidden">${says}</span>` : mark}</span>
      <bdi>${visible(name)}</bdi>${reason && html` <span class="small"><${Words} text=${reason} /></span>`}</li>`;
}
