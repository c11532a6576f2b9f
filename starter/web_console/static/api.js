/**
 * Requests to the gateway, with the caller's key. Errors are sentences for people.
 *
 * The key stays in the sessionStorage of this tab. A request that the gateway rejects for lack of a key waits until
 * `askForKey` has got one, so no page has to know about keys.
 */

const KEY = "baton.key";
const FIRST_DELAY = 250;
const MAX_DELAY = 10_000;
const RETRIED = new Set([408, 429, 500, 502, 503, 504]);
const HIDDEN_FOR = 5_000; // milliseconds after which a hidden tab closes its stream

/** An error with a sentence that says what went wrong. `status` is that of the response, 0 without one. */
export class ApiError extends Error {
  constructor(message, { status = 0, code = "unreachable", param, retryAfter } = {}) {
    super(sentence(message));
    this.status = status;
    this.code = code;
    this.param = param;
    this.retryAfter = retryAfter;
  }
}

let asking = null;
let askForKey = async () => null;

/** Sets the function `(reason) => Promise<key>` that asks the user for a key; null if the user gives none. */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

export function hasKey() {
  return sessionStorage.getItem(KEY) !== null;
}

/** Forgets the key, and what was written with it in this tab: the next person may be another one. */
export function forgetKey() {
  for (const name of Object.keys(sessionStorage)) if (name.startsWith("baton.")) sessionStorage.removeItem(name);
}

/** Asks for a key, once for all requests that wait for it. */
function newKey(reason) {
  asking ??= askForKey(reason).then((key) => {
    if (key === null) throw new ApiError("This gateway needs a key.", { status: 401, code: "invalid_api_key" });
    if (hasKey() && sessionStorage.getItem(KEY) !== key) forgetKey();
    sessionStorage.setItem(KEY, key);
  }).finally(() => { asking = null; });
  return asking;
}

/** The response to a request, which is successful. Throws ApiError; AbortError if `signal` is aborted. */
async function request(method, path, { body, signal, headers = {} } = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const sent = { accept: "application/json", ...headers };
    if (key) sent.authorization = `Bearer ${key}`;
    if (body !== undefined) sent["content-type"] = "application/json";
    let response;
    try {
      response = await fetch(path, {
        method,
        headers: sent,
        body: body === undefined || typeof body === "string" ? body : JSON.stringify(body),
        signal,
        cache: "no-store",
        credentials: "omit",
        redirect: "error",
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("The gateway can't be reached. It may be restarting, or the network is down.");
    }
    if (response.ok) return response;
    if (response.status === 401) {
      if (key === sessionStorage.getItem(KEY)) {
        await newKey(key ? "The gateway no longer knows this key." : null);
      }
      continue;
    }
    throw await errorOf(response);
  }
}

async function errorOf(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // the response is not the gateway's, or is cut off
  }
  return new ApiError(error.message ?? `The gateway has answered with the status ${response.status}.`, {
    status: response.status,
    code: error.code,
    param: error.param,
    retryAfter: Number(response.headers.get("retry-after")) || undefined,
  });
}

/** The JSON of a resource; `params` are parameters of the query, of which empty ones are left out. */
export async function get(path, params = {}, { signal } = {}) {
  return (await request("GET", withParams(path, params), { signal })).json();
}

/** Sends a value as JSON, or a JSON text as it is, and returns the JSON of the response. */
export async function post(path, body = {}, { signal, headers } = {}) {
  return (await request("POST", path, { body, signal, headers })).json();
}

/** Replaces a resource with JSON and returns the JSON of the response. */
export async function put(path, body, { signal } = {}) {
  return (await request("PUT", path, { body, signal })).json();
}

/** The content of a resource that is not JSON, as a Blob. */
export async function blob(path, params = {}, { signal } = {}) {
  return (await request("GET", withParams(path, params), { signal, headers: { accept: "*/*" } })).blob();
}

/**
 * The events of a run after the cursor `after`, to the end of the run.
 *
 * A broken connection is opened again after the last cursor, so that no event is lost or doubled. Only the pieces of a
 * text that is being written begin anew then: place them by their `offset`. `onConnection` receives `true` when a
 * connection is open, and `false` when it is broken. Throws ApiError if the run can't be read at all.
 *
 * A hidden tab has no connection, and goes on when it is seen again: a browser has six connections to a gateway that
 * speaks HTTP/1.1, for all of its tabs.
 */
export async function* events(run, { after = null, signal, onConnection = () => {} } = {}) {
  let cursor = after;
  let delay = FIRST_DELAY;
  const seen = new Set();
  for (;;) {
    await untilVisible(signal);
    if (signal?.aborted) return;
    const tab = untilHidden(signal);
    try {
      const path = withParams(`/runs/${encodeURIComponent(run)}/events`, { after: cursor });
      const response = await request("GET", path, { signal: tab.signal, headers: { accept: "text/event-stream" } });
      onConnection(true);
      for await (const event of parsed(response.body)) {
        delay = FIRST_DELAY;
        if (event.cursor && event.cursor !== cursor) {
          cursor = event.cursor;
          seen.clear();
        }
        if (event.id && event.type !== "text.delta") {
          if (seen.has(event.id)) continue;
          seen.add(event.id);
        }
        yield event;
        if (event.type === "run.ended" && event.run === run) return;
      }
    } catch (error) {
      if (error.name === "AbortError" && tab.signal.aborted) continue;
      if (error instanceof ApiError && error.status && !RETRIED.has(error.status)) throw error;
      if (error.retryAfter) delay = Math.max(delay, error.retryAfter * 1000);
    } finally {
      tab.release();
    }
    if (signal?.aborted) return;
    onConnection(false);
    await sleep(delay * (0.75 + Math.random() / 2), signal);
    if (signal?.aborted) return;
    delay = Math.min(MAX_DELAY, delay * 2);
  }
}

/** Waits until the tab is visible, or the signal is aborted. */
function untilVisible(signal) {
  return new Promise((resolve) => {
    const check = () => {
      if (document.hidden && !signal?.aborted) return;
      document.removeEventListener("visibilitychange", check);
      signal?.removeEventListener("abort", check);
      resolve();
    };
    document.addEventListener("visibilitychange", check);
    signal?.addEventListener("abort", check);
    check();
  });
}

/** A signal that is aborted with another one, and when the tab has been hidden for a while. It has to be released. */
function untilHidden(signal) {
  const controller = new AbortController();
  let timer;
  const abort = () => controller.abort();
  const check = () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(abort, HIDDEN_FOR);
  };
  document.addEventListener("visibilitychange", check);
  signal?.addEventListener("abort", abort);
  check();
  return {
    signal: controller.signal,
    release() {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", check);
      signal?.removeEventListener("abort", abort);
    },
  };
}

/** The values of the server-sent events in a body: https://html.spec.whatwg.org/multipage/server-sent-events.html. */
async function* parsed(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        } else if (line === "" && data.length) {
          const text = data.join("\n");
          data = [];
          yield JSON.parse(text);
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Waits for milliseconds, or until the signal is aborted. */
export function sleep(milliseconds, signal) {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const timer = setTimeout(done, milliseconds);
    function done() {
      clearTimeout(timer);
      signal?.removeEventListener("abort", done);
      resolve();
    }
    signal?.addEventListener("abort", done);
    return undefined;
  });
}

function withParams(path, params) {
  const given = Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

/** A message as a sentence: with a capital letter at its beginning, and a full stop at its end. */
export function sentence(text) {
  const trimmed = String(text).trim();
  if (!trimmed) return "Something went wrong.";
  const capital = /^[a-z]+[\s,]/.test(trimmed) ? trimmed[0].toUpperCase() + trimmed.slice(1) : trimmed;
  return /[.!?…]$/.test(capital) ? capital : `${capital}.`;
}
