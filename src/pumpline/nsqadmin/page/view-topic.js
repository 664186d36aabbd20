// One topic: its figures in all and by node, channels, messages, settings, holds, dead letters.

import { buttons, create } from "./actions.js";
import { get, live } from "./api.js";
import { chart } from "./chart.js";
import { channelColumns } from "./columns.js";
import { h, link, paths, replace, setText } from "./dom.js";
import { bytes, count, lag, moment, rate } from "./format.js";
import { messageBrowser } from "./messages.js";
import { plainTable } from "./table.js";
import { deadLetters, holds, settings } from "./topic-parts.js";
import { troubleList } from "./view-overview.js";

const nodeColumns = [
  { label: "node", head: true, show: (row) => link(paths.node(row.node), row.node) },
  { label: "state", show: (row) => h("span", { class: row.ok ? "faint" : "bad" }, row.ok ? (row.paused ? "paused" : "ok") : row.error) },
  { label: "in/s", number: true, show: (row) => rate(row.in_rate) },
  { label: "depth", number: true, show: (row) => count(row.depth), title: "messages that no channel has taken" },
  { label: "waiting", number: true, show: (row) => count(row.waiting) },
  { label: "in flight", number: true, show: (row) => count(row.in_flight) },
  { label: "lag", number: true, show: (row) => lag(row.lag_ms) },
  { label: "messages", number: true, show: (row) => count(row.message_count) },
  { label: "log", number: true, show: (row) => (row.log ? bytes(row.log.bytes) : row.ok && !row.is_pumpline ? "a Go nsqd has none" : "–") },
  { label: "kept since", show: (row) => (row.log?.first_timestamp_ms ? moment(row.log.first_timestamp_ms) : "") },
];

/** Parts of a page of which one is shown; which, is in the address. */
export function parts(list) {
  const wanted = new URLSearchParams(location.search).get("show") ?? list[0].id;
  const body = h("div");
  let end = null;
  const tabs = list.map((each) => h("button", { type: "button", class: "tab", role: "tab", "aria-selected": "false", onclick: () => open(each, true) }, each.label));

  function open(each, keep) {
    end?.();
    tabs.forEach((tab, index) => tab.setAttribute("aria-selected", String(list[index] === each)));
    const made = each.make();
    replace(body, made);
    end = made.start?.() ?? null;
    if (!keep) return;
    const address = new URL(location.href);
    address.searchParams.set("show", each.id);
    history.replaceState(history.state, "", address);
  }

  const element = h("section", {}, h("div", { class: "tabs", role: "tablist" }, tabs), body);
  element.start = () => { open(list.find((each) => each.id === wanted) ?? list[0], false); return () => end?.(); };
  return element;
}

export function topicView(session, topic) {
  const troubles = troubleList(false);
  const facts = h("p", { class: "facts" }, "…");
  const doing = h("span", { class: "doing" });
  const note = h("p", { class: "bad", role: "status" });
  const rates = chart("Messages a second", [{ id: "in_rate", label: "in", show: rate }, { id: "finish_rate", label: "finished", show: rate }]);
  const depth = chart("Waiting", [{ id: "waiting", label: "waiting", show: count }]);
  const nodes = plainTable("By node", nodeColumns, { empty: "No node has it." });
  const channels = plainTable("Channels", channelColumns, { empty: "It has no channels yet: messages wait in the topic, for the first." });
  const tabs = h("div");
  let end = null;
  let acts = "";

  function draw(data) {
    setText(note, data.found ? data.message : "No node has this topic.");
    troubles.update(data.troubles ?? []);
    const total = data.total ?? {};
    setText(facts, `${rate(total.in_rate)} in/s · ${count(total.waiting)} waiting · lag ${lag(total.lag_ms)} · ${count(total.in_flight)} in flight · ${count(total.deferred)} deferred · ${count(total.message_count)} messages, ${bytes(total.message_bytes)}`);
    nodes.update(data.nodes ?? []);
    channels.update(data.channels ?? []);
    const key = `${data.found} ${total.paused} ${session.is_admin}`;
    if (session.is_admin && key !== acts) {
      acts = key;
      replace(doing, data.found && [buttons([{ ...total, topic }]), h("button", { type: "button", onclick: () => create(topic) }, "New channel…")]);
    }
    if (!end && data.found) {
      const names = data.nodes.map((each) => each.node);
      const made = parts([
        { id: "messages", label: "Messages", make: () => messageBrowser({ topic, nodes: names }) },
        { id: "dead", label: "Dead letters", make: () => deadLetters(session, topic) },
        { id: "settings", label: "Settings", make: () => settings(session, topic) },
        { id: "holds", label: "Holds", make: () => holds(session, topic) },
      ]);
      replace(tabs, made);
      end = made.start();
    }
  }

  const more = () => get("/api/v1/history", { topic }).then((data) => { rates.update(data); depth.update(data); }).catch(() => {});
  return {
    title: topic,
    element: h(
      "div", {},
      h("div", { class: "title" }, h("h1", {}, topic), doing),
      note, facts, troubles,
      h("div", { class: "charts" }, rates, depth),
      h("section", {}, h("h2", {}, "Channels"), channels),
      h("section", {}, h("h2", {}, "Nodes"), nodes),
      tabs,
    ),
    start: () => {
      more();
      const timer = setInterval(more, 10_000);
      const stop = live("topic", { topic }, { full: draw, delta: draw, error: (error) => setText(note, error.message) });
      return () => { clearInterval(timer); stop(); end?.(); };
    },
  };
}
