/** Components that all pages share. Text of users and models is only ever rendered as text. */
import { html, useEffect, useErrorBoundary, useLayoutEffect, useRef, useState } from "./vendor/htm-preact-standalone.js";
import { ApiError, sleep } from "./api.js";

/** The control characters of text, and those that change its direction, as visible ones. The length stays the same. */
export function visible(text) {
  return String(text ?? "")
    .replace(/\r\n?/g, "\n")
    // eslint-disable-next-line no-control-regex
    .replace(/[\x00-\x08\x0b-\x1f]/g, (character) => String.fromCharCode(0x2400 + character.charCodeAt(0)))
    .replace(/[\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufeff]/g, "\ufffd");
}

/** A text of a user or a model, in its own direction. `as` is the element. */
export function Words({ text, as = "span", class: name = "", ...more }) {
  return html`<${as} class=${`words ${name}`} dir="auto" ...${more}>${visible(text)}<//>`;
}

const DAY_AND_TIME = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const EXACT = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "numeric", minute: "2-digit", second: "2-digit" });
const RELATIVE = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "long" });
const NUMBER = new Intl.NumberFormat("en");
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** How long ago a time was, in its largest unit, such as "5 minutes ago". */
export function ago(time, now = Date.now()) {
  const seconds = Math.round((new Date(time).getTime() - now) / 1000);
  if (seconds > -5) return "just now";
  for (const [unit, length] of [["day", 86_400], ["hour", 3_600], ["minute", 60], ["second", 1]]) {
    if (-seconds >= length) return RELATIVE.format(Math.ceil(seconds / length), unit);
  }
  return "just now";
}

const ticking = new Set();
let ticker = null;

/** The present time in milliseconds; the component is rendered again every second, as are all others that use it. */
export function useNow() {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    ticking.add(setNow);
    ticker ??= setInterval(() => {
      if (!document.hidden) ticking.forEach((set) => set(Date.now()));
    }, 1000);
    return () => {
      ticking.delete(setNow);
      if (!ticking.size) {
        clearInterval(ticker);
        ticker = null;
      }
    };
  }, []);
  return now;
}

/** A time in the reader's zone. `form` is "ago", "clock" or "date". */
export function Time({ at, form = "ago" }) {
  return form === "ago" ? html`<${Ago} at=${at} />` : html`
    <time dateTime=${at} title=${EXACT.format(new Date(at))}>
      ${(form === "clock" ? CLOCK : DAY_AND_TIME).format(new Date(at))}
    </time>`;
}

function Ago({ at }) {
  const now = useNow();
  return html`<time dateTime=${at} title=${EXACT.format(new Date(at))}>${ago(at, now)}</time>`;
}

/** A duration in seconds as text, such as "2 min 05 s". */
export function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (seconds < 10 && seconds % 1) return `${seconds.toFixed(1)} s`;
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  return `${NUMBER.format(Math.floor(whole / 3600))} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
}

/** The time from `start` to `end`, or until now. */
export function Duration({ start, end }) {
  return end
    ? html`<span class="number">${duration(Math.floor((new Date(end) - new Date(start)) / 1000))}</span>`
    : html`<${Running} start=${start} />`;
}

function Running({ start }) {
  const now = useNow();
  return html`<span class="number">${duration(Math.floor((now - new Date(start)) / 1000))}</span>`;
}

/** A cost in US dollars; nothing if it is not known. */
export function Money({ value }) {
  return value === null || value === undefined ? null : html`<span class="number">${money(value)}</span>`;
}

export function money(value) {
  if (value === 0) return "$0";
  return value < 0.01 ? `$${value.toFixed(4)}` : `$${NUMBER.format(Number(value.toFixed(2)))}`;
}

/** A number of tokens; its title has it exactly. */
export function Tokens({ value }) {
  return value === null || value === undefined
    ? null
    : html`<span class="number" title=${`${NUMBER.format(value)} tokens`}>${COMPACT.format(value)}</span>`;
}

export function number(value) {
  return NUMBER.format(value);
}

/** "1 turn", "2 turns". */
export function count(value, unit, units = `${unit}s`) {
  return `${NUMBER.format(value)} ${value === 1 ? unit : units}`;
}

/** The number of colours of speakers: `--speaker-0` and so on in style.css. */
export const SPEAKER_COLORS = 8;

/** The colour of a speaker: the same on every page. */
export function speakerColor(name) {
  let hash = 2166136261;
  for (const character of String(name)) {
    hash = Math.imul(hash ^ character.codePointAt(0), 16777619) >>> 0;
  }
  return ((hash ^ (hash >>> 13)) >>> 0) % SPEAKER_COLORS;
}

/** The name of a speaker with its colour and its initials. */
export function Speaker({ name, kind, note }) {
  return html`
    <span class=${`speaker speaker-${speakerColor(name)}`} title=${kind ? `${kind} ${visible(name)}` : undefined}>
      <${Monogram} name=${name} />
      <bdi class="speaker-name">${visible(name)}</bdi>
      ${note && html`<span class="speaker-note">${note}</span>`}
    </span>`;
}

/** The initials of a name on its colour. */
export function Monogram({ name }) {
  const parts = visible(name).split(/[\s._/-]+/).filter(Boolean);
  const initials = parts.length > 1 ? [...parts[0]][0] + [...parts[1]][0] : [...(parts[0] ?? "?")].slice(0, 2).join("");
  return html`<span class=${`monogram speaker-${speakerColor(name)}`} aria-hidden="true">${initials}</span>`;
}

const PHASES = {
  Running: ["running", "Running"],
  Paused: ["paused", "Paused"],
  InputRequired: ["waits", "Waits for you"],
  Waiting: ["outage", "Waits for a server"],
  Completed: ["completed", "Completed"],
  Failed: ["failed", "Failed"],
  Canceled: ["canceled", "Canceled"],
  Terminated: ["failed", "Terminated"],
  "Timed out": ["failed", "Timed out"],
};

/** The phase of a run, by colour, shape and word. */
export function Phase({ phase }) {
  const [name, label] = PHASES[phase] ?? ["canceled", phase];
  return html`<span class=${`phase phase-${name}`}>${label}</span>`;
}

/** What is folded until somebody opens it. `summary` is its line; the content is made when it is opened. */
export function Folded({ summary, open = false, class: name = "", children }) {
  const [isOpen, setOpen] = useState(open);
  return html`
    <details class=${`folded ${name}`} open=${isOpen} onToggle=${(event) => setOpen(event.currentTarget.open)}>
      <summary>${summary}</summary>
      ${isOpen && html`<div class="folded-content">${children}</div>`}
    </details>`;
}

/** What a page shows if there is nothing: a title, and what to do next. */
export function Empty({ title, children }) {
  return html`<div class="empty"><h2><bdi>${title}</bdi></h2><p>${children}</p></div>`;
}

/** What a page shows while it loads: nothing at first, so that what is fast does not flicker. */
export function Loading({ what = "" }) {
  return html`<p class="loading" role="status">Loading ${what}…</p>`;
}

/** An error in a sentence, with a way to go on. */
export function ErrorText({ error, retry }) {
  if (!error) return null;
  const text = typeof error === "string" ? error : error instanceof ApiError ? error.message : unexpected(error);
  return html`
    <div class="error" role="alert">
      <span dir="auto">${visible(text)}</span>
      ${retry && html`<button type="button" class="quiet" onClick=${retry}>Try again</button>`}
    </div>`;
}

function unexpected(error) {
  return `The page has failed: ${error.message}. Reload it, and report this if it happens again.`;
}

/** Shows the error of a page that fails, instead of nothing. */
export function Guarded({ children }) {
  const [error, reset] = useErrorBoundary((failure) => console.error(failure));
  return error ? html`<${ErrorText} error=${error} retry=${reset} />` : children;
}

/**
 * A modal dialog with a title. `onClose` is called when it is to be closed; without it, it can't be.
 * The browser keeps the focus within it, and gives it back afterwards.
 */
export function Dialog({ title, onClose, children, class: name = "" }) {
  const ref = useRef(null);
  useLayoutEffect(() => {
    const dialog = ref.current;
    const before = document.activeElement;
    dialog.showModal();
    return () => {
      dialog.close();
      before?.focus?.();
    };
  }, []);
  return html`
    <dialog ref=${ref} class=${name} aria-labelledby="dialog-title" onCancel=${(event) => {
      event.preventDefault();
      onClose?.();
    }} onClose=${(event) => {
      // Browsers close a dialog at the second Escape, also one that has to be answered.
      if (!onClose && event.currentTarget.isConnected) event.currentTarget.showModal();
    }}>
      <header>
        <h2 id="dialog-title"><bdi>${title}</bdi></h2>
        ${onClose && html`<button type="button" class="icon" aria-label="Close" onClick=${onClose}>×</button>`}
      </header>
      ${children}
    </dialog>`;
}

let nextId = 0;

/** An id that no other element has. */
export function useId() {
  const ref = useRef(null);
  ref.current ??= `id-${nextId++}`;
  return ref.current;
}

/** A labelled field of a form; `children` receives the attributes of its control. */
export function Field({ label, hint, error, children }) {
  const id = useId();
  const described = [hint && `${id}-hint`, error && `${id}-error`].filter(Boolean).join(" ") || undefined;
  return html`
    <div class="field">
      <label for=${id}>${label}</label>
      ${hint && html`<p class="hint" id=${`${id}-hint`}>${hint}</p>`}
      ${children({ id, "aria-describedby": described, "aria-invalid": error ? "true" : undefined })}
      ${error && html`<p class="field-error" id=${`${id}-error`} role="alert">${error}</p>`}
    </div>`;
}

/** A button that does something that takes a moment: it shows that, and reports an error to `onError`. */
export function ActButton({ act, onError = () => {}, children, class: name = "", ...more }) {
  const [isBusy, setBusy] = useState(false);
  const alive = useAlive();
  const run = async () => {
    if (isBusy) return;
    setBusy(true);
    onError(null);
    try {
      await act();
    } catch (error) {
      onError(error);
    } finally {
      if (alive.current) setBusy(false);
    }
  };
  return html`
    <button type="button" class=${name} aria-busy=${isBusy ? "true" : undefined} onClick=${run} ...${more}>${children}</button>`;
}

function useAlive() {
  const alive = useRef(true);
  useEffect(() => () => { alive.current = false; }, []);
  return alive;
}

/**
 * What `load(signal)` returns, again whenever one of `inputs` changes: `{value, error, isLoading, reload}`.
 * The value of before stays until there is a new one. It does not change under a form that a person fills in.
 */
export function useLoaded(load, inputs = []) {
  return usePolled(load, null, inputs);
}

/** The same, loaded again `interval` milliseconds after the last answer, while the page is visible. */
export function usePolled(load, interval, inputs = []) {
  const [state, setState] = useState({ value: undefined, error: null, isLoading: true });
  const wake = useRef(() => {});
  useEffect(() => {
    const controller = new AbortController();
    let again = new AbortController();
    wake.current = () => again.abort();
    const onVisible = () => { if (!document.hidden && interval !== null) again.abort(); };
    document.addEventListener("visibilitychange", onVisible);
    (async () => {
      let failures = 0;
      while (!controller.signal.aborted) {
        again = new AbortController();
        try {
          const value = await load(controller.signal);
          if (controller.signal.aborted) return;
          failures = 0;
          setState({ value, error: null, isLoading: false });
        } catch (error) {
          if (controller.signal.aborted) return;
          failures += 1;
          setState((before) => ({ ...before, error, isLoading: false }));
        }
        do {
          const pause = interval === null ? 2 ** 30 : Math.min(30_000, interval * 2 ** Math.min(failures, 5));
          await sleep(pause, again.signal);
        } while (document.hidden && !again.signal.aborted && !controller.signal.aborted);
      }
    })();
    return () => {
      controller.abort();
      again.abort();
      document.removeEventListener("visibilitychange", onVisible);
    };
  }, inputs);
  return { ...state, reload: () => wake.current() };
}
