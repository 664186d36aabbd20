// Messages: a browser by place, time and text, and a live tail.

import { get } from "./api.js";
import { address, h, link, paths, replace, setText } from "./dom.js";
import { bytes, count, moment } from "./format.js";

const TAIL_MAX = 200;

/** A body as people read it: JSON in order, text, or bytes in hex. */
export function bodyText(message) {
  if (message.body_base64 !== undefined && message.body_base64 !== null) {
    const raw = atob(message.body_base64);
    const hex = [...raw.slice(0, 4096)].map((char) => char.charCodeAt(0).toString(16).padStart(2, "0"));
    const lines = [];
    for (let at = 0; at < hex.length; at += 16) lines.push(`${at.toString(16).padStart(6, "0")}  ${hex.slice(at, at + 16).join(" ")}`);
    return { kind: "bytes", text: lines.join("\n") };
  }
  const text = message.body ?? "";
  if (/^\s*[[{]/.test(text)) {
    try {
      // Numbers beyond what JavaScript keeps would be shown as others: then the text stays as it is.
      const value = JSON.parse(text);
      if (JSON.stringify(value) === text.replace(/\s*([{}[\]:,])\s*/g, "$1")) return { kind: "JSON", text: JSON.stringify(value, null, 2) };
      return { kind: "JSON", text };
    } catch {
      return { kind: "text", text };
    }
  }
  return { kind: "text", text };
}

function oneLine(message) {
  if (message.body_base64 !== undefined && message.body_base64 !== null) return bodyText(message).text.split("\n")[0].slice(8);
  return (message.body ?? "").slice(0, 300).replace(/\s+/g, " ");
}

/** A message in a list; opens to show its body. */
export function messageRow(topic, message) {
  const body = h("pre", { tabindex: "0" });
  const facts = [message.attempts > 1 && `attempt ${message.attempts}`, message.state && message.state !== "waiting" && message.state.replace("_", " "), message.deferred_until_ms && `until ${moment(message.deferred_until_ms)}`, bytes(message.bytes)];
  const detail = h("details", { class: "message" },
    h("summary", {},
      h("span", { class: "number offset" }, count(message.offset)),
      h("span", { class: "when" }, moment(message.timestamp_ms, { fraction: true })),
      h("span", { class: "body" }, oneLine(message)),
      h("span", { class: "faint facts" }, facts.filter(Boolean).join(", "))));
  detail.addEventListener("toggle", () => {
    if (!detail.open || body.textContent) return;
    const shown = bodyText(message);
    setText(body, shown.text);
    detail.append(h("div", { class: "opened" },
      h("p", { class: "faint" }, `${shown.kind}, id `, h("code", {}, message.id), ` on ${message.node}, `,
        link(paths.message(topic, message.node, message.offset), "where it stands"), ", ",
        h("a", { href: address("/api/v1/body", { topic, node: message.node, offset: String(message.offset) }), download: `${topic}-${message.offset}` }, "download"),
        message.truncated ? h("b", {}, ` — only the beginning of ${bytes(message.bytes)} is shown`) : ""),
      body));
  });
  return detail;
}

/** Reads the messages of a topic, or of a channel with `states`. */
export function messageBrowser({ topic, channel = "", states = [], nodes = [] }) {
  const node = h("select", { "aria-label": "Node" }, h("option", { value: "" }, "all nodes"), nodes.map((each) => h("option", { value: each }, each)));
  const from = h("input", { type: "text", placeholder: "offset or time", "aria-label": "From an offset or a time", title: "an offset of one node, or a time: 08:14, 2026-11-16 08:14:02" });
  const contains = h("input", { type: "search", placeholder: "contains", "aria-label": "Contains" });
  const list = h("div", { class: "messages" });
  const note = h("p", { class: "faint", role: "status" });
  const more = h("button", { type: "button", hidden: true }, "More");
  const tailing = h("button", { type: "button", "aria-pressed": "false" }, "Live tail");
  const pause = h("button", { type: "button", hidden: true }, "Pause");
  let state = states[0] ?? "";
  let next = "";
  let source = null;
  let held = [];
  let paused = false;
  const tabs = states.map((each) => h("button", { type: "button", class: "chip", "aria-pressed": String(each === state), onclick: () => choose(each) }, each.replace("_", " ")));

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

  async function look(following = "") {
    stopTail();
    const where = following ? { next: following } : place();
    if (!where) {
      setText(note, "Neither an offset nor a time: try 1042331, 08:14 or 2026-11-16 08:14:02.");
      return;
    }
    setText(note, "");
    try {
      const answer = await get("/api/v1/messages", { topic, channel, state, node: node.value, contains: contains.value, limit: 20, ...where, ...(following && where.newest ? { newest: "true" } : {}) });
      if (!following) replace(list);
      list.append(...answer.messages.map((message) => messageRow(topic, message)));
      next = answer.next;
      more.hidden = !next;
      const absent = answer.nodes.filter((each) => !each.ok).map((each) => `${each.node}: ${each.error}`);
      const none = list.childElementCount ? "" : next ? "None on this page; there is more." : "None.";
      setText(note, [none, ...absent].filter(Boolean).join(" "));
    } catch (error) {
      if (!following) replace(list);
      more.hidden = true;
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
      return;
    }
    replace(list);
    more.hidden = true;
    held = [];
    paused = false;
    setText(pause, "Pause");
    pause.hidden = false;
    setText(note, "Messages appear here as they are published.");
    tailing.setAttribute("aria-pressed", "true");
    source = new EventSource(address("/api/v1/tail", { topic, node: node.value, contains: contains.value }));
    source.addEventListener("message", (event) => {
      const message = JSON.parse(event.data);
      if (!paused) show(message);
      else if (held.length < TAIL_MAX) held.push(message);
      if (paused) setText(pause, `Go on (${count(held.length)}${held.length === TAIL_MAX ? "+" : ""})`);
    });
    source.addEventListener("node", (event) => {
      const each = JSON.parse(event.data);
      if (!each.ok) setText(note, `${each.node}: ${each.error}`);
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
  element.start = () => { look(); return stopTail; };
  return element;
}
