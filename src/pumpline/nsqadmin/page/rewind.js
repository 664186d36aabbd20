// Moving a channel to another place in the log. What that would do is told before it is done.

import { nameOf } from "./actions.js";
import { get, post } from "./api.js";
import { fail, modal, tellResults, toast } from "./dialog.js";
import { h, replace, setText } from "./dom.js";
import { count, localInput, many, moment } from "./format.js";
import { plainTable } from "./table.js";

const STEPS = 1000; // of the slider
const DAY_MS = 86_400_000;

const effectColumns = [
  { label: "node", head: true, show: (row) => row.node },
  { label: "to offset", number: true, show: (row) => (row.ok ? count(row.offset) : "") },
  { label: "again", number: true, show: (row) => (row.ok ? count(row.again) : "") },
  { label: "skipped", number: true, show: (row) => (row.ok ? count(row.skipped) : "") },
  { label: "", show: (row) => (row.ok ? (row.clamped ? "the oldest there is" : "") : h("span", { class: "bad" }, row.error)) },
];

/** What a dry run says, in words. */
function inWords(answer, where, consumers) {
  const words = [h("b", {}, many(answer.again, "message")), ` will be delivered again, from ${where}.`];
  if (answer.skipped) words.push(` ${many(answer.skipped, "message")} that wait will be skipped.`);
  if (answer.in_flight) words.push(` Answers to ${many(answer.in_flight, "message")} in flight will come too late.`);
  words.push(` ${many(consumers ?? 0, "consumer")} ${consumers === 1 ? "is" : "are"} connected.`);
  return words;
}

/** The nodes that have a log of the topic, and when the oldest message in them was published. */
async function logsOf(topic) {
  const found = await get("/api/v1/topic", { topic });
  const nodes = found.nodes.filter((each) => each.log);
  const times = nodes.map((each) => each.log.first_timestamp_ms).filter(Boolean);
  return { nodes: nodes.map((each) => each.node), first: times.length ? Math.min(...times) : null };
}

/** The dialog: gives where to go, or null. */
function choosePlace(row, logs) {
  const now = Date.now();
  const earliest = logs.first ?? now - DAY_MS;
  return modal(`Rewind ${nameOf(row)}`, (close) => {
    const slider = h("input", { type: "range", min: 0, max: STEPS, value: STEPS, "aria-label": "Between the oldest message and now" });
    const time = h("input", { type: "datetime-local", step: "1", value: localInput(now), "aria-label": "Time" });
    const offset = h("input", { type: "text", inputmode: "numeric", size: 12, placeholder: "offset", "aria-label": "Offset", autocomplete: "off" });
    const node = h("select", { "aria-label": "Node" }, logs.nodes.length > 1 && h("option", { value: "" }, "all nodes"), logs.nodes.map((each) => h("option", { value: each }, each)));
    const effect = h("p", { class: "effect", role: "status" }, "Choose a time, an offset or an end. What will be delivered again is told here first.");
    const byNode = plainTable("What it does on each node", effectColumns);
    const go = h("button", { type: "submit", class: "danger", disabled: true }, "Rewind");
    let wanted = null; // the place, and how to call it
    let chosen = null;
    let asked = 0;

    async function look(place, shown) {
      wanted = [place, shown];
      chosen = null;
      go.disabled = true;
      const turn = ++asked;
      if (place.offset !== undefined && !node.value) {
        replace(effect, "An offset is one of a node's log: choose the node, too.");
        byNode.hidden = true;
        return;
      }
      const body = { topic: row.topic, channel: row.channel, ...(node.value ? { node: node.value } : {}), ...place };
      try {
        const answer = await post("/api/v1/rewind", { ...body, dry_run: true });
        if (turn !== asked) return;
        replace(effect, inWords(answer, shown, row.consumers));
        byNode.update(answer.nodes.map((each) => ({ ...each, key: each.node })));
        byNode.hidden = false;
        chosen = body;
        setText(go, answer.skipped && !answer.again ? "Skip" : "Rewind");
        go.disabled = false;
      } catch (error) {
        if (turn !== asked) return;
        replace(effect, h("span", { class: "bad" }, error.message));
        byNode.hidden = true;
      }
    }

    const lookAt = (milliseconds) => look({ time_ms: Math.round(milliseconds) }, moment(milliseconds));
    const slid = () => earliest + ((now - earliest) * slider.value) / STEPS;
    slider.addEventListener("input", () => { time.value = localInput(slid()); });
    slider.addEventListener("change", () => { offset.value = ""; lookAt(slid()); });
    time.addEventListener("change", () => {
      const at = new Date(time.value).getTime();
      if (Number.isNaN(at)) return;
      offset.value = "";
      slider.value = Math.round((STEPS * (at - earliest)) / Math.max(now - earliest, 1));
      lookAt(at);
    });
    offset.addEventListener("input", () => {
      const text = offset.value.replaceAll(",", "").trim();
      if (/^\d{1,18}$/.test(text)) look({ offset: Number(text) }, `offset ${count(Number(text))}`);
    });
    node.addEventListener("change", () => wanted && look(...wanted));
    byNode.hidden = true;
    const ends = [["beginning", "Beginning"], ["end", "End"]].map(([to, label]) => h("button", { type: "button", onclick: () => look({ to }, `the ${to}`) }, label));
    return h(
      "form", { method: "dialog", onsubmit: (event) => { event.preventDefault(); if (chosen) close(chosen); } },
      h("p", {}, slider),
      h("p", { class: "row" }, time, offset, node, ends),
      effect, byNode,
      h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => close(null) }, "Cancel"), go),
    );
  });
}

export async function rewind(row) {
  try {
    const place = await choosePlace(row, await logsOf(row.topic));
    if (!place) return;
    const answer = await post("/api/v1/rewind", { ...place, dry_run: false });
    toast(`Rewound ${nameOf(row)}: ${many(answer.depth, "message")} waiting.`);
    tellResults("Rewind", answer);
  } catch (error) {
    fail(error);
  }
}
