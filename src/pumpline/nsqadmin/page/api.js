// What nsqadmin is asked: once, or live by server-sent events.

import { address } from "./dom.js";

export class ApiError extends Error {
  constructor(status, body) {
    const text = body?.detail ? `${body.message}: ${body.detail}` : body?.message;
    super(text || `nsqadmin answered ${status}`);
    this.status = status;
    this.body = body ?? {};
  }
}

async function ask(method, path, parameters, body) {
  const options = { method, headers: { Accept: "application/json" } };
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(address(path, parameters), options);
  } catch {
    throw new ApiError(0, { message: "nsqadmin does not answer" });
  }
  const answer = await response.json().catch(() => null);
  if (!response.ok) throw new ApiError(response.status, answer);
  return answer;
}

export const get = (path, parameters = {}) => ask("GET", path, parameters);
export const post = (path, body) => ask("POST", path, {}, body);

/** Apply a delta to what a `full` event brought; returns the keys of the rows that changed. */
export function applyDelta(state, delta) {
  Object.assign(state, delta.set ?? {}, { seq: delta.seq, at_ms: delta.at_ms });
  const changed = new Set();
  if (!delta.rows || !state.rows) return changed;
  for (const row of state.rows) {
    if (!(row.key in delta.rows)) continue;
    changed.add(row.key);
    const news = delta.rows[row.key];
    if (news === null) row.gone = true;
    else Object.assign(row, news);
  }
  return changed;
}

const listeners = new Set();

/** Whether the streams of this page are connected is told to these. */
export function onConnection(listener) {
  listeners.add(listener);
}

function tell(connected) {
  for (const listener of listeners) listener(connected);
}

/**
 * A view that stays up to date. `on.full(state)` gets all of it, `on.delta(state, changedKeys)` what changed,
 * `on.error(error)` what ended it. Nothing is asked while the page is hidden. Returns how to stop it.
 */
export function live(view, parameters, on) {
  let source = null;
  let state = null;
  let ended = false;

  function open() {
    if (source || ended || document.hidden) return;
    source = new EventSource(address("/api/v1/events", { ...parameters, view }));
    source.addEventListener("full", (event) => {
      state = JSON.parse(event.data);
      tell(true);
      on.full(state);
    });
    source.addEventListener("delta", (event) => {
      if (!state) return;
      const changed = applyDelta(state, JSON.parse(event.data));
      on.delta(state, changed);
    });
    source.addEventListener("error", (event) => {
      if (event.data) {
        const error = JSON.parse(event.data);
        stop();
        on.error?.(new ApiError(error.status, error));
      } else if (!ended && source?.readyState === EventSource.CLOSED) {
        close();
        askWhy();
      } else if (!ended) {
        tell(false);
      }
    });
  }

  // The browser connects again by itself, but not after an answer that is no stream, of which it does not tell what it was.
  async function askWhy() {
    try {
      await get(`/api/v1/${view}`, parameters);
    } catch (error) {
      if (error.status >= 400 && error.status < 500) {
        stop();
        on.error?.(error);
        return;
      }
    }
    if (ended) return;
    tell(false);
    setTimeout(open, 2000);
  }

  function close() {
    source?.close();
    source = null;
  }

  function onVisibility() {
    if (document.hidden) close();
    else open();
  }

  function stop() {
    ended = true;
    close();
    document.removeEventListener("visibilitychange", onVisibility);
  }

  document.addEventListener("visibilitychange", onVisibility);
  open();
  return stop;
}
