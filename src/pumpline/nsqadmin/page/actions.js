// What can be done to topics and channels, with the questions that come before.

import { get, post } from "./api.js";
import { confirm, fail, modal, tellResults, toast } from "./dialog.js";
import { h, replace } from "./dom.js";
import { count, many } from "./format.js";

const NAMES_SHOWN = 10;
const REVERSE = { pause: "unpause", unpause: "pause" };
const DONE = { pause: "Paused", unpause: "Unpaused", empty: "Emptied", delete: "Deleted", create: "Created", tombstone: "Tombstoned", delete_hold: "Deleted" };

export function nameOf(target) {
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

/** What many rows are, in words: with few enough, by their names. */
function list(rows) {
  const names = rows.slice(0, NAMES_SHOWN).map(nameOf).join(", ");
  return rows.length > NAMES_SHOWN ? `${names} and ${count(rows.length - NAMES_SHOWN)} more` : names;
}

function losses(rows, node) {
  const waiting = rows.reduce((sum, row) => sum + (row.waiting ?? 0), 0);
  const flying = rows.reduce((sum, row) => sum + (row.in_flight ?? 0), 0);
  const nodes = Math.max(0, ...rows.map((row) => row.nodes ?? 0));
  const held = flying ? `, ${count(flying)} more in flight` : "";
  const where = node ? `, on ${node}` : nodes ? `, on ${many(nodes, "node")}` : "";
  return `${many(waiting, "message")} waiting${held}${where}`;
}

export async function empty(rows, options = {}) {
  const names = rows.length === 1 ? nameOf(rows[0]) : `${count(rows.length)} rows`;
  const text = [rows.length > 1 && `${list(rows)}.`, `This drops ${losses(rows, options.node)}.`, "They are not delivered. On a pumpline nsqd a rewind brings back what retention keeps."];
  const ok = await confirm({ title: `Empty ${names}?`, text, verb: "Empty", name: rows.length === 1 ? rows[0].channel ?? rows[0].topic : "" });
  return ok && act("empty", rows, options);
}

export async function remove(rows, options = {}) {
  const names = rows.length === 1 ? nameOf(rows[0]) : `${count(rows.length)} rows`;
  const name = rows.length === 1 ? rows[0].channel ?? rows[0].topic : `delete ${rows.length}`;
  const topics = rows.some((row) => !row.channel);
  const text = [`This deletes ${list(rows)}${options.node ? "" : " everywhere"}, and ${losses(rows, options.node)}.`, topics ? "All channels and messages go with it." : "What the channel has finished is forgotten, too."];
  const ok = await confirm({ title: `Delete ${names}?`, text, verb: "Delete", name });
  return ok && act("delete", rows, options);
}

/** Send a consumer away, after the question; `row` is one of the table of consumers. */
export async function disconnect(topic, channel, row) {
  const { node, remote_address: client } = row;
  const who = [row.client_id, row.hostname].filter((text, index, all) => text && all.indexOf(text) === index).join(" @ ");
  const held = row.in_flight ? `What it has in flight, ${many(row.in_flight, "message")}, goes back to ${channel} at once, for other consumers` : "It has nothing in flight";
  const text = [
    `This closes the connection of ${client}${who ? ` (${who})` : ""} to ${node}.`,
    `${held}.`,
    "A client that still runs may connect again, as a rule within seconds. To keep it away, stop it.",
  ];
  if (!(await confirm({ title: `Disconnect a consumer of ${nameOf({ topic, channel })}?`, text, verb: "Disconnect" }))) return;
  try {
    const answer = await post("/api/v1/actions", { action: "disconnect", targets: [{ topic, channel, client }], node });
    const back = answer.results[0].nodes[0].in_flight;
    toast(`Disconnected ${client}. ${back ? `${many(back, "message")} went back to ${channel}` : "It had nothing in flight"}.`);
  } catch (error) {
    const gone = error.body?.results?.[0].nodes[0]?.error === "404 CLIENT_NOT_FOUND";
    if (gone) toast(`${client} is not connected any more.`);
    else fail(error);
  }
}

/** Buttons for rows of topics or channels. A hold can only be deleted, where it is listed. */
export function buttons(rows, { node = "" } = {}) {
  const own = rows.filter((row) => row.hold !== true);
  if (!own.length) return [];
  const paused = own.every((row) => row.paused);
  return [
    h("button", { type: "button", onclick: () => act(paused ? "unpause" : "pause", own, { node }) }, paused ? "Unpause" : "Pause"),
    h("button", { type: "button", onclick: () => empty(own, { node }) }, "Empty…"),
    h("button", { type: "button", class: "danger", onclick: () => remove(own, { node }) }, "Delete…"),
  ];
}

/**
 * Buttons for one topic or channel, on all nodes or on one that is chosen. `update({row, nodes, more})` tells what there is; what
 * is lost is counted when a button is pressed.
 */
export function actionBar() {
  const where = h("select", { "aria-label": "Act on" });
  const doing = h("span", { class: "doing" });
  let shown = "";
  let latest = null;

  const target = () => {
    const part = latest.nodes.find((each) => each.node === where.value);
    const { topic, channel } = latest.row;
    return [part ? { ...part, topic, channel, nodes: 1 } : latest.row];
  };
  const on = () => ({ node: where.value });
  const button = (label, run, more = {}) => h("button", { type: "button", onclick: run, ...more }, label);

  function draw() {
    const [row] = target();
    const key = JSON.stringify([latest.nodes.map((each) => each.node), Boolean(row.paused), where.value, latest.more.map((each) => each.label)]);
    if (key === shown) return;
    shown = key;
    const names = latest.nodes.map((each) => each.node);
    const chosen = where.value;
    replace(where, h("option", { value: "" }, "on all nodes"), names.map((each) => h("option", { value: each }, `on ${each}`)));
    where.value = names.includes(chosen) ? chosen : "";
    replace(
      doing, names.length > 1 && where,
      button(row.paused ? "Unpause" : "Pause", () => act(target()[0].paused ? "unpause" : "pause", target(), on())),
      latest.more.map((each) => button(each.label, each.run)),
      button("Empty…", () => empty(target(), on())),
      button("Delete…", () => remove(target(), on()), { class: "danger" }),
    );
  }

  where.addEventListener("change", draw);
  doing.update = (news) => {
    latest = news && { more: [], ...news };
    if (latest) draw();
    else {
      shown = "";
      replace(doing);
    }
  };
  return doing;
}

const NAME = "[.a-zA-Z0-9_\\-]+(#ephemeral)?";

function nameField(label, more = {}) {
  return h("input", { type: "text", pattern: NAME, maxlength: 64, autocomplete: "off", spellcheck: "false", "aria-label": label, ...more });
}

/** Where a new topic can be: nsqlookupds tell producers and consumers of one that no nsqd has yet. */
async function places(session) {
  const nodes = (await get("/api/v1/table/nodes", { limit: 500 })).rows.filter((row) => row.ok).map((row) => row.node);
  const everywhere = session.mode === "nsqd" ? "on all nsqds" : "at the nsqlookupds; nsqds get it with the first message";
  return h("select", { "aria-label": "Where" }, h("option", { value: "" }, everywhere), nodes.map((each) => h("option", { value: each }, `on ${each}`)));
}

/** Ask for the name of a new topic, or of a channel of `topic`. */
export async function create(session, topic = "") {
  const where = topic ? null : await places(session).catch(() => null);
  const made = await modal(topic ? `New channel of ${topic}` : "New topic", (close) => {
    const name = nameField("Name", { required: true, autofocus: true });
    const channel = topic ? null : nameField("Channel");
    const submit = (event) => {
      event.preventDefault();
      close(topic ? { topic, channel: name.value } : { topic: name.value, channel: channel.value || undefined });
    };
    return h(
      "form", { method: "dialog", onsubmit: submit },
      h("p", {}, h("label", {}, "Name", h("br"), name)),
      channel && h("p", {}, h("label", {}, "Channel, if there is to be one", h("br"), channel)),
      where && h("p", {}, h("label", {}, "Where", h("br"), where)),
      h("p", { class: "faint" }, "Letters, digits, . _ - and at most 64 of them."),
      h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => close(null) }, "Cancel"), h("button", { type: "submit" }, "Create")),
    );
  });
  return Boolean(made) && act("create", [made], { node: where?.value ?? "" });
}
