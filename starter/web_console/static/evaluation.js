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

/** Compares as `compare_with_baseline` of baseline.py does, apart from chance: rows of means, and the cases that fell. */
function compared(report, baseline) {
  const before = valuesOf(baseline);
  const rows = [];
  for (const [name, now] of valuesOf(report)) {
    const common = [...now.keys()].filter((one) => before.get(name)?.has(one));
    if (common.length) rows.push(rowOf(name, common, (one) => mean(before.get(name).get(one)), (one) => mean(now.get(one))));
  }
  const failedBefore = failuresOf(baseline);
  for (const [name, shares] of failuresOf(report)) {
    const shareBefore = (one) => failedBefore.get(name)?.get(one) ?? 0;
    const worse = [...shares.keys()].filter((one) => shares.get(one) > shareBefore(one));
    if (worse.length) rows.push(rowOf(name, worse, (one) => 1 - shareBefore(one), (one) => 1 - shares.get(one)));
  }
  return rows;
}

/** The means of an evaluation over cases, and those cases in which it fell, the deepest fall first. */
function rowOf(name, cases, before, now) {
  const fall = (one) => before(one) - now(one);
  const row = { name, before: mean(cases.map(before)), now: mean(cases.map(now)) };
  const hasFallen = row.before - row.now > 1e-9;
  const fallen = hasFallen ? cases.filter((one) => fall(one) > 0).sort((one, other) => fall(other) - fall(one)) : [];
  return { ...row, fallen };
}

/** The values of each evaluation by its name and its case, each with those of its repeats: an assertion is 1 or 0. */
function valuesOf({ cases }) {
  const values = new Map();
  for (const each of cases) {
    for (const { name, value } of [...resultsOf(each.assertions), ...resultsOf(each.scores)]) {
      const ofName = values.get(name) ?? new Map();
      values.set(name, ofName.set(caseName(each), [...(ofName.get(caseName(each)) ?? []), Number(value)]));
    }
  }
  return values;
}

/** The shares of failed runs, and of runs for which an evaluator has failed, by case; only of those with one. */
function failuresOf({ cases, failures }) {
  const runs = new Map();
  for (const each of [...cases, ...failures]) runs.set(caseName(each), (runs.get(caseName(each)) ?? 0) + 1);
  const shares = new Map();
  const add = (name, one) => {
    const ofName = shares.get(name) ?? new Map();
    shares.set(name, ofName.set(one, (ofName.get(one) ?? 0) + 1 / runs.get(one)));
  };
  for (const each of failures) add("completed runs", caseName(each));
  for (const each of cases) {
    for (const failed of each.evaluator_failures ?? []) add(`${failed.name} (the evaluator has failed)`, caseName(each));
  }
  return shares;
}

/** The name of a case, without the number of its repeat. */
const caseName = (one) => one.source_case_name ?? one.name;

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

const resultsOf = (results) => Object.entries(results ?? {}).map(([name, result]) => ({ ...result, name }));

function Report({ report, baseline }) {
  const [isWhole, setWhole] = useState(false);
  const shown = isWhole ? report.cases : report.cases.slice(0, SHOWN_CASES);
  return html`
    <p class="note-line"><span>
      ${count(report.cases.length, "case")}${report.failures.length > 0 && `, ${count(report.failures.length, "run")} failed`}
      ${report.dataset_name && html` · dataset <bdi>${visible(report.dataset_name)}</bdi>`}
    </span></p>
    ${baseline && html`<${Changes} rows=${compared(report, baseline)} />`}
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

/** The means of both reports; what has become worse is marked in words, with its cases. */
function Changes({ rows }) {
  if (!rows.length) return html`<p class="note-line">No case of both reports has an evaluation in common.</p>`;
  return html`
    <section aria-label="Compared with the baseline"><h2>Compared with the baseline</h2>
      <div class="scroll" tabindex="0" role="region" aria-label="Means of both reports">
        <table>
          <thead><tr><th scope="col">Evaluation</th><th scope="col">Before</th><th scope="col">Now</th><th scope="col"></th></tr></thead>
          <tbody>${rows.map(({ name, before, now, fallen }) => html`
            <tr key=${name}><th scope="row"><bdi>${visible(name)}</bdi></th><td class="number">${decimal(before)}</td><td class="number">${decimal(now)}</td>
              <td>${fallen.length > 0 && html`<span class="badge badge-bad">worse</span> <bdi>${visible(namesOf(fallen))}</bdi>`}</td></tr>`)}
          </tbody>
        </table>
      </div>
    </section>`;
}

const decimal = (value) => value.toFixed(3);

const SHOWN_FALLEN = 5;
const namesOf = (cases) => cases.slice(0, SHOWN_FALLEN).join(", ") + (cases.length > SHOWN_FALLEN ? ", …" : "");

/** A table of the report, such as the means with their intervals. */
function Analysis({ title, columns, rows }) {
  const hasFractions = columns.map((_, place) => rows.some((row) => typeof row[place] === "number" && !Number.isInteger(row[place])));
  const cell = (value, place) => (typeof value === "number" ? html`<span class="number">${hasFractions[place] ? decimal(value) : value}</span>` : visible(String(value ?? "")));
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
