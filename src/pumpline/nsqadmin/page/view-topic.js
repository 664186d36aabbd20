// One topic: its figures in all and by node, channels, messages, settings, holds, dead letters.

import { actionBar, buttons, create } from "./actions.js";
import { get, live } from "./api.js";
import { chart } from "./chart.js";
import { channelColumns } from "./columns.js";
import { h, keepInAddress, link, paths, replace, setText } from "./dom.js";
import { bytes, count, lag, moment, rate } from "./format.js";
import { messageBrowser } from "./messages.js";
import { liveTable, plainTable } from "./table.js";
import { deadLetters, holds, settings } from "./topic-parts.js";
import { gauges, troubleList } from "./view-overview.js";

const nodeColumns = [
  { label: "node", head: true, show: (row) => link(paths.node(row.node), row.node) },
  { label: "state", class: "state", show: (row) => h("span", { class: row.ok ? "faint" : "bad" }, row.ok ? (row.paused ? "paused" : "ok") : row.error) },
  { label: "in/s", number: true, show: (row) => rate(row.in_rate) },
  { label: "depth", number: true, show: (row) => count(row.depth), title: "messages that no channel has taken" },
  { label: "waiting", number: true, show: (row) => count(row.waiting) },
  { label: "in flight", number: true, show: (row) => count(row.in_flight) },
  { label: "lag", number: true, show: (row) => lag(row.lag_ms) },
  { label: "messages", number: true, show: (row) => count(row.message_count) },
  { label: "disk", number: true, show: (row) => bytes(row.log?.bytes) },
  { label: "kept since", width: "col-text", show: (row) => (row.log?.first_timestamp_ms ? moment(row.log.first_timestamp_ms) : row.ok && !row.is_pumpline ? h("span", { class: "faint" }, "no log: a Go nsqd") : "") },
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
    if (keep) keepInAddress({ show: each === list[0] ? "" : each.id, m_from: "", m_contains: "", m_node: "", m_state: "", m_tail: "" });
  }

  const element = h("section", {}, h("div", { class: "tabs", role: "tablist" }, tabs), body);
  element.start = () => {
    const first = list.find((each) => each.id === wanted) ?? list[0];
    open(first, false);
    if (first !== list[0]) {
      element.classList.add("sought"); // high enough to be scrolled to before it has its content
      element.scrollIntoView();
    }
    return () => end?.();
  };
  return element;
}

export function topicView(session, topic) {
  const troubles = troubleList(false);
  const facts = gauges("This topic", {
    in_rate: ["in/s", rate], waiting: ["waiting", count], lag_ms: ["lag", lag], in_flight: ["in flight", count], deferred: ["deferred", count],
    message_count: ["messages", count], message_bytes: ["published", bytes], log_bytes: ["disk", bytes],
  });
  const doing = actionBar();
  const note = h("p", { class: "bad", role: "status" });
  const rates = chart("Messages a second", [{ id: "in_rate", label: "in", show: rate }, { id: "finish_rate", label: "finished", show: rate }]);
  const depth = chart("Waiting", [{ id: "waiting", label: "waiting", show: count }]);
  const nodes = plainTable("By node", nodeColumns, { empty: "No node has it." });
  const channels = liveTable({
    view: "table/channels", caption: "Channels", columns: channelColumns, sort: "channel", parameters: { topic }, prefix: "c_", searchable: false,
    bulk: session.is_admin ? (rows) => buttons(rows) : null, empty: "It has no channels yet: messages wait in the topic, for the first.",
  });
  const tabs = h("div");
  const parts_ = h("div", { hidden: true }, h("div", { class: "charts" }, rates, depth), h("section", {}, h("h2", {}, "Channels"), channels), h("section", {}, h("h2", {}, "Nodes"), nodes), tabs);
  let end = null;

  function draw(data) {
    setText(note, data.found ? data.message.replace("WARNING: ", "Not all nodes answered: ") : "No node has this topic. If an nsqlookupd knows it, Lookup has it.");
    troubles.update(data.troubles ?? []);
    const total = data.total ?? {};
    facts.update(total);
    facts.hidden = parts_.hidden = !data.found;
    nodes.update(data.nodes ?? []);
    const more = [{ label: "New channel…", run: () => create(session, topic) }];
    if (session.is_admin) doing.update(data.found ? { row: { ...total, topic }, nodes: data.nodes.filter((each) => each.ok), more } : null);
    if (!end && data.found) {
      const names = data.nodes.map((each) => each.node);
      const made = parts([
        { id: "messages", label: "Messages", make: () => messageBrowser({ topic, nodes: names }) },
        { id: "dead", label: "Dead letters", make: () => deadLetters(session, topic) },
        { id: "settings", label: "Settings", make: () => settings(session, topic) },
        { id: "holds", label: "Holds", make: () => holds(session, topic) },
      ]);
      replace(tabs, made);
      const ends = [made.start(), channels.start()];
      end = () => ends.forEach((each) => each());
    }
  }

  const more = () => get("/api/v1/history", { topic }).then((data) => { rates.update(data); depth.update(data); }).catch(() => {});
  return {
    title: topic,
    element: h(
      "div", {},
      h("div", { class: "title" }, h("h1", {}, topic), doing),
      note, troubles, facts, parts_,
    ),
    start: () => {
      more();
      const timer = setInterval(more, 10_000);
      const stop = live("topic", { topic }, { full: draw, delta: draw, error: (error) => setText(note, error.message) });
      return () => { clearInterval(timer); stop(); end?.(); };
    },
  };
}
