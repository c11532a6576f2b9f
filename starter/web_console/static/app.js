/** The console: its layout, its router, and the entry of the key. */
import { html, render, useEffect, useRef, useState } from "./vendor/htm-preact-standalone.js";
import { forgetKey, get, hasKey, onKeyNeeded } from "./api.js";
import { Dialog, Empty, Field, Guarded, useLoaded } from "./ui.js";
import { ChatPage, StartPage } from "./acts.js";
import { ComparePage } from "./compare.js";
import { EvaluationPage } from "./evaluation.js";
import { RunsPage } from "./runs.js";
import { RunPage } from "./run.js";
import { TeamPage, TeamsPage } from "./teams.js";

const THEME = "baton.theme";
const THEMES = ["auto", "light", "dark"];

/** The pages by the patterns of their paths; `:name` is a part of a path, and `:name*` is the rest of it. */
const ROUTES = [
  ["", RunsPage, "Runs"],
  ["runs/:id", RunPage, "Run"],
  ["compare/:a", ComparePage, "Compare"],
  ["compare/:a/:b", ComparePage, "Compare"],
  ["evaluation", EvaluationPage, "Evaluation"],
  ["teams", TeamsPage, "Teams"],
  ["teams/:namespace/:kind/:name", TeamPage, "Teams"],
  ["start", StartPage, "Start"],
  ["start/:target*", StartPage, "Start"],
  ["chat/:target*", ChatPage, "Chat"],
];

/** The page of a hash such as `#/runs/ID?turn=2`: its component, and the values of its path and its query. */
function routeOf(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  for (const [pattern, page, title] of ROUTES) {
    const names = pattern.split("/");
    const values = {};
    const takesRest = names.at(-1).endsWith("*");
    const fits = (takesRest ? parts.length >= names.length : parts.length === names.length) && names.every((name, index) => {
      if (name.endsWith("*")) values[name.slice(1, -1)] = parts.slice(index).join("/");
      else if (name.startsWith(":")) values[name.slice(1)] = parts[index];
      else return name === parts[index];
      return true;
    });
    if (fits) return { page, title, path, values, query: Object.fromEntries(new URLSearchParams(query)) };
  }
  return { page: UnknownPage, title: "Not found", path, values: {}, query: {} };
}

function UnknownPage() {
  return html`<${Empty} title="There is no such page">Go to the <a href="#/">runs</a>, or to the <a href="#/teams">teams</a>.<//>`;
}

function useRoute() {
  const [route, setRoute] = useState(() => routeOf(location.hash));
  useEffect(() => {
    const changed = () => setRoute(routeOf(location.hash));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}

function KeyDialog({ reason, onKey }) {
  const [error, setError] = useState(null);
  const submit = (event) => {
    event.preventDefault();
    const key = new FormData(event.currentTarget).get("key").trim();
    if (/^[\x21-\x7e]+$/.test(key)) onKey(key);
    else setError("A key has no spaces and no special characters.");
  };
  return html`
    <${Dialog} title="Your key">
      <form onSubmit=${submit}>
        <p>${reason ?? "This gateway needs a key."} The command <code>baton gateway-key NAME -f FILE</code> makes one. It stays in this tab only.</p>
        <${Field} label="Key" error=${error}>
          ${(field) => html`<input ...${field} name="key" type="password" autocomplete="off" spellcheck=${false} required autofocus />`}
        <//>
        <div class="actions"><button type="submit" class="primary">Continue</button></div>
      </form>
    <//>`;
}

function Theme() {
  const [theme, setTheme] = useState(() => localStorage.getItem(THEME) ?? "auto");
  useEffect(() => {
    localStorage.setItem(THEME, theme);
    document.documentElement.dataset.theme = theme;
  }, [theme]);
  const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  const signs = { auto: "◐", light: "☀", dark: "☾" };
  return html`
    <button type="button" class="icon" title=${`Theme: ${theme}`} aria-label=${`Theme: ${theme}. Change to ${next}.`}
      onClick=${() => setTheme(next)}><span aria-hidden="true">${signs[theme]}</span></button>`;
}

function Who() {
  const { value } = useLoaded((signal) => get("/console", {}, { signal }));
  if (!value || !hasKey()) return null;
  const leave = () => {
    forgetKey();
    location.reload();
  };
  return html`<button type="button" class="quiet" title="Forget the key" onClick=${leave}><bdi>${value.caller}</bdi> · sign out</button>`;
}

function App() {
  const route = useRoute();
  const [asked, setAsked] = useState(null);
  const main = useRef(null);
  const first = useRef(true);
  useEffect(() => onKeyNeeded((reason) => new Promise((resolve) => setAsked({ reason, resolve }))), []);
  useEffect(() => {
    document.title = `${route.values.name ?? route.values.target ?? route.values.id ?? route.title} · Baton`;
    if (first.current) first.current = false;
    else {
      scrollTo(0, 0);
      main.current.focus({ preventScroll: true });
    }
  }, [route.path]);
  const onKey = (key) => {
    asked.resolve(key);
    setAsked(null);
  };
  const current = (title) => (route.title === title ? "page" : undefined);
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>Skip to the content</a>
    <header class="top">
      <a class="brand" href="#/"><img src="/assets/icon.svg" alt="" width="24" height="24" />Baton</a>
      <nav aria-label="Pages">
        <a href="#/" aria-current=${current("Runs")}>Runs</a>
        <a href="#/teams" aria-current=${current("Teams")}>Teams</a>
        <a href="#/evaluation" aria-current=${current("Evaluation")}>Evaluation</a>
        <a href="#/start" aria-current=${current("Start")}>Start a run</a>
      </nav>
      <div class="top-end"><${Who} /><${Theme} /></div>
    </header>
    <main id="main" ref=${main} tabindex="-1">
      <${Guarded} key=${route.path}><${route.page} ...${route.values} query=${route.query} /><//>
    </main>
    ${asked && html`<${KeyDialog} reason=${asked.reason} onKey=${onKey} />`}`;
}

document.documentElement.dataset.theme = localStorage.getItem(THEME) ?? "auto";
render(html`<${App} />`, document.getElementById("app"));
