// What can be done to topics and channels, with the questions that come before.

import { post } from "./api.js";
import { confirm, fail, modal, tellResults, toast } from "./dialog.js";
import { h, replace } from "./dom.js";
import { count, localInput, many, moment } from "./format.js";

const REVERSE = { pause: "unpause", unpause: "pause" };
const DONE = { pause: "Paused", unpause: "Unpaused", empty: "Emptied", delete: "Deleted", create: "Created", tombstone: "Tombstoned", delete_hold: "Deleted" };

function nameOf(target) {
  return [target.topic, target.channel ?? target.hold].filter(Boolean).join(" › ");
}

/** Of a row, what names it; rows of channels say with `hold` whether they are one. */
function bare({ topic, channel, hold }) {
  return typeof hold === "string" ? { topic, hold } : { topic, channel };
}

/** Act on targets, on all nodes or one; tells what came of it. Returns whether anything was done. */
export async function act(action, targets, { node = "", after = null } = {}) {
  try {
    const body = { action, targets: targets.map(bare) };
    const answer = await post("/api/v1/actions", node ? { ...body, node } : body);
    const names = targets.length === 1 ? nameOf(targets[0]) : `${count(targets.length)} rows`;
    const back = REVERSE[action];
    toast(`${DONE[action]} ${names}${node ? ` on ${node}` : ""}.`, { undo: back ? () => act(back, targets, { node, after }) : null });
    tellResults(DONE[action], answer);
    after?.();
    return true;
  } catch (error) {
    fail(error);
    return false;
  }
}

function losses(rows) {
  const waiting = rows.reduce((sum, row) => sum + (row.waiting ?? 0), 0);
  const flying = rows.reduce((sum, row) => sum + (row.in_flight ?? 0), 0);
  const nodes = Math.max(0, ...rows.map((row) => row.nodes ?? 0));
  const held = flying ? `, ${count(flying)} more in flight` : "";
  return `${many(waiting, "message")} waiting${held}${nodes ? `, on ${many(nodes, "node")}` : ""}`;
}

export async function empty(rows, options = {}) {
  const names = rows.length === 1 ? nameOf(rows[0]) : `${count(rows.length)} rows`;
  const text = [`This drops ${losses(rows)}.`, "They are not delivered. On a pumpline nsqd a rewind brings back what retention keeps."];
  const ok = await confirm({ title: `Empty ${names}?`, text, verb: "Empty", name: rows.length === 1 ? rows[0].channel ?? rows[0].topic : "" });
  return ok && act("empty", rows, options);
}

export async function remove(rows, options = {}) {
  const names = rows.length === 1 ? nameOf(rows[0]) : `${count(rows.length)} rows`;
  const name = rows.length === 1 ? rows[0].channel ?? rows[0].topic : `delete ${rows.length}`;
  const text = [`This deletes ${names} and ${losses(rows)}.`, rows.length === 1 && !rows[0].channel ? "All its channels and messages go with it." : "Its place in the log is forgotten."];
  const ok = await confirm({ title: `Delete ${names}?`, text, verb: "Delete", name });
  return ok && act("delete", rows, options);
}

/** Buttons for rows of topics or channels. */
export function buttons(rows, { after = null, node = "" } = {}) {
  const paused = rows.every((row) => row.paused);
  return [
    h("button", { type: "button", onclick: () => act(paused ? "unpause" : "pause", rows, { after, node }) }, paused ? "Unpause" : "Pause"),
    h("button", { type: "button", onclick: () => empty(rows, { after, node }) }, "Empty…"),
    h("button", { type: "button", class: "danger", onclick: () => remove(rows, { after, node }) }, "Delete…"),
  ];
}

/** Ask for the name of a new topic, or of a channel of `topic`. */
export async function create(topic = "") {
  const made = await modal(topic ? `New channel of ${topic}` : "New topic", (close) => {
    const name = h("input", { type: "text", required: true, pattern: "[.a-zA-Z0-9_\\-]+(#ephemeral)?", maxlength: 64, autocomplete: "off", spellcheck: "false", autofocus: true, "aria-label": "Name" });
    const channel = topic ? null : h("input", { type: "text", pattern: "[.a-zA-Z0-9_\\-]+(#ephemeral)?", maxlength: 64, autocomplete: "off", spellcheck: "false", "aria-label": "Channel" });
    const submit = (event) => {
      event.preventDefault();
      close(topic ? { topic, channel: name.value } : { topic: name.value, channel: channel.value || undefined });
    };
    return h(
      "form", { method: "dialog", onsubmit: submit },
      h("p", {}, h("label", {}, "Name", h("br"), name)),
      channel && h("p", {}, h("label", {}, "Channel, if there is to be one", h("br"), channel)),
      h("p", { class: "faint" }, "Letters, digits, . _ - and at most 64 of them."),
      h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => close(null) }, "Cancel"), h("button", { type: "submit" }, "Create")),
    );
  });
  return Boolean(made) && act("create", [made]);
}

/** Move a channel to a time, the beginning or the end; the count of what comes again is shown before. */
export async function rewind(row, { firstMs = null, after = null } = {}) {
  const now = Date.now();
  const earliest = firstMs && firstMs < now ? firstMs : now - 24 * 3600 * 1000;
  const place = await modal(`Rewind ${nameOf(row)}`, (close) => {
    const input = h("input", { type: "datetime-local", step: "1", value: localInput(now - 60_000), "aria-label": "Time" });
    const slider = h("input", { type: "range", min: 0, max: 1000, value: 1000, "aria-label": "Between the oldest message and now" });
    const effect = h("p", { class: "effect", role: "status" }, "…");
    const go = h("button", { type: "submit", class: "danger", disabled: true }, "Rewind");
    let chosen = null;
    let asked = 0;

    const look = async (where, shown) => {
      chosen = null;
      go.disabled = true;
      const turn = ++asked;
      try {
        const answer = await post("/api/v1/rewind", { topic: row.topic, channel: row.channel, dry_run: true, ...where });
        if (turn !== asked) return;
        const skipped = answer.skipped ? ` ${many(answer.skipped, "message")} will be skipped.` : "";
        const flying = answer.in_flight ? ` Answers to ${many(answer.in_flight, "message")} in flight will not be taken.` : "";
        const failed = (answer.nodes ?? []).filter((node) => !node.ok);
        replace(effect, h("b", {}, many(answer.again, "message")), ` will be delivered again from ${shown}.${skipped}${flying} `, many(row.consumers ?? 0, "consumer"), row.consumers === 1 ? " is connected." : " are connected.", failed.map((node) => h("span", { class: "bad" }, ` ${node.node}: ${node.error}.`)));
        chosen = where;
        go.disabled = false;
      } catch (error) {
        if (turn === asked) replace(effect, h("span", { class: "bad" }, error.message));
      }
    };
    const lookAt = (milliseconds) => look({ time_ms: milliseconds }, moment(milliseconds));
    input.addEventListener("change", () => { if (input.value) lookAt(new Date(input.value).getTime()); });
    slider.addEventListener("change", () => {
      const at = earliest + ((now - earliest) * slider.value) / 1000;
      input.value = localInput(at);
      lookAt(Math.round(at));
    });
    slider.addEventListener("input", () => { input.value = localInput(earliest + ((now - earliest) * slider.value) / 1000); });
    lookAt(now - 60_000);
    return h(
      "form", { method: "dialog", onsubmit: (event) => { event.preventDefault(); if (chosen) close(chosen); } },
      h("p", {}, slider),
      h("p", { class: "row" }, input,
        h("button", { type: "button", onclick: () => look({ to: "beginning" }, "the beginning") }, "Beginning"),
        h("button", { type: "button", onclick: () => look({ to: "end" }, "the end") }, "End")),
      effect,
      h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => close(null) }, "Cancel"), go),
    );
  });
  if (!place) return false;
  try {
    const answer = await post("/api/v1/rewind", { topic: row.topic, channel: row.channel, dry_run: false, ...place });
    toast(`Rewound ${nameOf(row)}: ${many(answer.depth, "message")} waiting.`);
    tellResults("Rewind", answer);
    after?.();
    return true;
  } catch (error) {
    fail(error);
    return false;
  }
}
