// Messages: a browser by place, time and text, and a live tail.

import { get } from "./api.js";
import { address, h, keepInAddress, link, paths, replace, setText } from "./dom.js";
import { bytes, count, moment } from "./format.js";

const TAIL_MAX = 200;
const NONE = { waiting: "No message is waiting.", in_flight: "No message is in flight.", deferred: "No message is deferred.", requeued: "No message was requeued and waits again." };

const KINDS = ["JSON", "text", "hex"];
const HEX_BYTES_MAX = 16 << 10; // shown; all of it can be downloaded

const isBinary = (message) => message.body_base64 !== undefined && message.body_base64 !== null;

function rawBytes(message) {
  if (isBinary(message)) return Uint8Array.from(atob(message.body_base64), (char) => char.charCodeAt(0));
  return new TextEncoder().encode(message.body ?? "");
}

/** Sixteen bytes a line, with their place, and as ASCII. */
function hexText(bytes_) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes_.length, HEX_BYTES_MAX); at += 16) {
    const part = [...bytes_.slice(at, Math.min(at + 16, HEX_BYTES_MAX))];
    const hex = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const ascii = part.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex.padEnd(47)}  ${ascii}`);
  }
  return lines.join("\n");
}

/** JSON in order; null if it is none. Numbers that JavaScript would change stay as they were written. */
function jsonText(text) {
  if (!/^\s*[[{]/.test(text)) return null;
  try {
    const value = JSON.parse(text);
    const same = JSON.stringify(value) === text.replace(/\s*([{}[\]:,])\s*/g, "$1");
    return same ? JSON.stringify(value, null, 2) : text;
  } catch {
    return null;
  }
}

/** A body as people read it: in that way, or in the one that suits it. */
export function bodyText(message, kind = "") {
  if (kind === "hex" || (!kind && isBinary(message))) return { kind: "hex", text: hexText(rawBytes(message)) };
  const text = isBinary(message) ? new TextDecoder().decode(rawBytes(message)) : message.body ?? "";
  const json = kind === "text" || isBinary(message) ? null : jsonText(text);
  return json === null ? { kind: "text", text } : { kind: "JSON", text: json };
}

/** A body, and the ways to see it. */
export function bodyView(message) {
  const shown = bodyText(message);
  const body = h("pre", { tabindex: "0" }, shown.text);
  const kinds = KINDS.filter((kind) => kind !== "JSON" || shown.kind === "JSON");
  const ways = kinds.map((kind) => h("button", { type: "button", class: "chip", "aria-pressed": String(kind === shown.kind), onclick: () => turn(kind) }, kind));

  function turn(kind) {
    ways.forEach((way, index) => way.setAttribute("aria-pressed", String(kinds[index] === kind)));
    setText(body, bodyText(message, kind).text);
  }

  return [h("div", { class: "tools", role: "group", "aria-label": "Show the body as" }, ways), body];
}

/** The way to all of a body. */
export function download(topic, message) {
  return h("a", { href: address("/api/v1/body", { topic, node: message.node, offset: String(message.offset) }), download: `${topic}-${message.offset}` }, `download ${bytes(message.bytes)}`);
}

function oneLine(message) {
  if (isBinary(message)) return hexText(rawBytes(message).slice(0, 16)).slice(8, 56).trim();
  return (message.body ?? "").slice(0, 300).replace(/\s+/g, " ");
}

/** A message in a list; opens to show its body. */
export function messageRow(topic, message) {
  const facts = [message.attempts > 1 && `attempt ${message.attempts}`, message.state && message.state !== "waiting" && message.state.replace("_", " "), message.deferred_until_ms && `until ${moment(message.deferred_until_ms)}`, bytes(message.bytes)];
  const detail = h("details", { class: "message" },
    h("summary", {},
      h("span", { class: "number offset" }, count(message.offset)),
      h("span", { class: "when" }, moment(message.timestamp_ms, { fraction: true })),
      h("span", { class: "body" }, oneLine(message)),
      h("span", { class: "faint facts" }, facts.filter(Boolean).join(", "))));
  detail.addEventListener("toggle", () => {
    if (!detail.open || detail.childElementCount > 1) return;
    detail.append(h("div", { class: "opened" },
      h("p", { class: "faint" }, "id ", h("code", {}, message.id), ` on ${message.node} · `,
        link(paths.message(topic, message.node, message.offset), "where it stands"), " · ", download(topic, message),
        message.truncated ? h("b", {}, " · only the beginning is shown") : ""),
      bodyView(message)));
  });
  return detail;
}

const TAILING = "Messages appear here as they are published.";
const LOOKS_MAX = 20; // at pages without a match, before somebody says to go on

/** Reads the messages of a topic, or of a channel with `states`. What is looked for is in the address. */
export function messageBrowser({ topic, channel = "", states = [], nodes = [] }) {
  const query = new URLSearchParams(location.search);
  const node = h("select", { "aria-label": "Node" }, h("option", { value: "" }, "all nodes"), nodes.map((each) => h("option", { value: each }, each)));
  const from = h("input", { type: "text", placeholder: "offset or time", "aria-label": "From an offset or a time", title: "an offset of one node, or a time: 08:14, 2026-11-16 08:14:02" });
  const contains = h("input", { type: "search", placeholder: "contains", "aria-label": "Contains" });
  const list = h("div", { class: "messages" });
  const note = h("p", { class: "faint", role: "status" });
  const more = h("button", { type: "button", hidden: true }, "More");
  const tailing = h("button", { type: "button", "aria-pressed": "false" }, "Live tail");
  const pause = h("button", { type: "button", hidden: true }, "Pause");
  let state = states.includes(query.get("m_state")) ? query.get("m_state") : states[0] ?? "";
  let next = "";
  let turn = 0;
  let source = null;
  let held = [];
  let paused = false;
  const tabs = states.map((each) => h("button", { type: "button", class: "chip", "aria-pressed": String(each === state), onclick: () => choose(each) }, each.replace("_", " ")));

  from.value = query.get("m_from") ?? "";
  contains.value = query.get("m_contains") ?? "";
  if (nodes.includes(query.get("m_node"))) node.value = query.get("m_node");

  function keep() {
    const values = { m_from: from.value.trim(), m_contains: contains.value, m_node: node.value, m_state: state === states[0] ? "" : state, m_tail: source ? "1" : "" };
    keepInAddress(values);
  }

  function choose(each) {
    state = each;
    tabs.forEach((tab, index) => tab.setAttribute("aria-pressed", String(states[index] === each)));
    look();
  }

  /** The parameters of a place that was typed: an offset, or a time of today or of a day. */
  function place() {
    const text = from.value.trim().replaceAll(",", "");
    if (!text) return channel ? {} : { newest: "true" };
    if (/^\d+$/.test(text)) return { from: text };
    const today = new Date();
    const day = `${today.getFullYear()}-${String(today.getMonth() + 1).padStart(2, "0")}-${String(today.getDate()).padStart(2, "0")}`;
    const time = new Date(/^\d\d?:/.test(text) ? `${day}T${text.padStart(5, "0")}` : text.replace(" ", "T")).getTime();
    return Number.isNaN(time) ? null : { time_ms: time };
  }

  /** A page; with `following`, the one after. Pages without a match are passed over, but not without end. */
  async function look(following = "") {
    stopTail();
    keep();
    const where = place();
    if (!where) {
      setText(note, "Neither an offset nor a time: try 1042331, 08:14 or 2026-11-16 08:14:02.");
      return;
    }
    if (where.from && nodes.length > 1 && !node.value) {
      setText(note, "An offset is one of a node's log: choose the node, too.");
      return;
    }
    const asked = ++turn;
    more.hidden = true;
    if (!following) next = "";
    const shown = following ? list.childElementCount : 0;
    let absent = [];
    try {
      for (let looks = 0; looks < LOOKS_MAX; looks += 1) {
        const answer = await get("/api/v1/messages", { topic, channel, state, node: node.value, contains: contains.value, limit: 20, ...where, ...(next ? { next, from: "" } : {}) });
        if (asked !== turn) return;
        if (!following && !looks) replace(list);
        list.append(...answer.messages.map((message) => messageRow(topic, message)));
        next = answer.next;
        if (!absent.length) absent = answer.nodes.filter((each) => !each.ok).map((each) => `${each.node}: ${each.error}.`);
        if (!next || list.childElementCount > shown) break;
        setText(note, "Looking …");
      }
      more.hidden = !next;
      const none = list.childElementCount > shown ? "" : next ? "None so far; there is more to look through." : following ? "That was all." : NONE[state] ?? "No messages.";
      setText(note, [none, ...absent].filter(Boolean).join(" "));
    } catch (error) {
      if (asked !== turn) return;
      if (!following) replace(list);
      setText(note, error.message);
    }
  }

  function show(message) {
    list.prepend(messageRow(topic, message));
    while (list.childElementCount > TAIL_MAX) list.lastElementChild.remove();
  }

  function stopTail() {
    source?.close();
    source = null;
    tailing.setAttribute("aria-pressed", "false");
    pause.hidden = true;
  }

  function tail() {
    if (source) {
      stopTail();
      keep();
      setText(note, "");
      return;
    }
    turn += 1;
    replace(list);
    more.hidden = true;
    held = [];
    paused = false;
    setText(pause, "Pause");
    pause.hidden = false;
    setText(note, TAILING);
    tailing.setAttribute("aria-pressed", "true");
    source = new EventSource(address("/api/v1/tail", { topic, node: node.value, contains: contains.value }));
    keep();
    source.addEventListener("message", (event) => {
      const message = JSON.parse(event.data);
      if (!paused) show(message);
      else if (held.length < TAIL_MAX) held.push(message);
      if (paused) setText(pause, `Go on (${count(held.length)}${held.length === TAIL_MAX ? "+" : ""})`);
    });
    source.addEventListener("node", (event) => {
      const each = JSON.parse(event.data);
      setText(note, each.ok ? TAILING : `${TAILING} ${each.node}: ${each.error}.`);
    });
  }

  pause.addEventListener("click", () => {
    paused = !paused;
    if (!paused) {
      held.forEach(show);
      held = [];
    }
    setText(pause, paused ? "Go on" : "Pause");
  });
  tailing.addEventListener("click", tail);
  more.addEventListener("click", () => look(next));
  node.addEventListener("change", () => look());
  const element = h(
    "div", {},
    h("form", { class: "tools", onsubmit: (event) => { event.preventDefault(); look(); } }, tabs, nodes.length > 1 && node, from, contains, h("button", { type: "submit" }, "Look"), !channel && [tailing, pause]),
    note, list, more,
  );
  element.start = () => { if (query.get("m_tail") && !channel) tail(); else look(); return stopTail; };
  return element;
}
