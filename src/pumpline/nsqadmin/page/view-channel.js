// One channel: how far behind it is, who consumes it, what waits in it.

import { actionBar, disconnect } from "./actions.js";
import { get, live } from "./api.js";
import { chart, roundUpTime } from "./chart.js";
import { consumerColumns } from "./columns.js";
import { toast } from "./dialog.js";
import { h, link, paths, replace, setText } from "./dom.js";
import { count, lag, rate } from "./format.js";
import { messageBrowser } from "./messages.js";
import { rewind } from "./rewind.js";
import { liveTable, plainTable } from "./table.js";
import { deadLetters } from "./topic-parts.js";
import { gauges, troubleList } from "./view-overview.js";
import { parts } from "./view-topic.js";

const perHour = (value) => (value === null || value === undefined ? "–" : rate(value * 3600));

const nodeColumns = [
  { label: "node", head: true, show: (row) => link(paths.node(row.node), row.node) },
  { label: "state", class: "state", show: (row) => h("span", { class: row.ok ? "faint" : "bad" }, row.ok ? (row.paused ? "paused" : "ok") : row.error) },
  { label: "waiting", number: true, show: (row) => count(row.waiting) },
  { label: "lag", number: true, show: (row) => lag(row.lag_ms) },
  { label: "in flight", number: true, show: (row) => count(row.in_flight) },
  { label: "deferred", number: true, show: (row) => count(row.deferred) },
  { label: "done/s", number: true, show: (row) => rate(row.finish_rate) },
  { label: "requeued", number: true, show: (row) => count(row.requeue_count) },
  { label: "timeouts", number: true, show: (row) => count(row.timeout_count) },
  { label: "consumers", number: true, show: (row) => count(row.consumers) },
];

export function channelView(session, topic, channel) {
  const troubles = troubleList(false);
  const facts = gauges("This channel", {
    waiting: ["waiting", count], lag_ms: ["lag", lag], in_flight: ["in flight", count], deferred: ["deferred", count], finish_rate: ["done/s", rate],
    requeue_rate: ["requeued/h", perHour], timeout_rate: ["timeouts/h", perHour], consumers: ["consumers", count],
  });
  const doing = actionBar();
  const note = h("p", { class: "bad", role: "status" });
  const waiting = chart("Waiting", [{ id: "waiting", label: "waiting", show: count }, { id: "in_flight", label: "in flight", show: count }, { id: "deferred", label: "deferred", show: count }]);
  const rates = chart("Messages a second", [{ id: "in_rate", label: "in", show: rate }, { id: "finish_rate", label: "finished", show: rate }, { id: "requeue_rate", label: "requeued", show: rate }, { id: "timeout_rate", label: "timed out", show: rate }]);
  const lags = chart("Lag", [{ id: "lag_ms", label: "lag", show: lag }], { round: roundUpTime });
  const nodes = plainTable("By node", nodeColumns, { empty: "No node has it." });
  const consumers = liveTable({ view: "table/consumers", caption: "Consumers", columns: consumerColumns(topic, session.is_admin && ((row) => sendAway(row))), sort: "remote_address", parameters: { topic, channel }, searchable: "many", prefix: "k_", empty: "Nobody consumes it." });
  const tabs = h("div");
  const parts_ = h("div", { hidden: true }, h("div", { class: "charts three" }, waiting, lags, rates), h("section", {}, h("h2", {}, "Consumers"), consumers), h("section", {}, h("h2", {}, "Nodes"), nodes), tabs);
  let end = null;

  function sendAway(row) {
    const node = on.find((each) => each.node === row.node);
    if (node && !node.is_pumpline) toast(`${row.node} is a Go nsqd, which cannot disconnect a consumer. Stop the consumer itself.`, { isError: true });
    else disconnect(topic, channel, row);
  }

  let latest = { topic, channel };
  let on = [];

  function draw(data) {
    setText(note, data.found ? data.message.replace("WARNING: ", "Not all nodes answered: ") : "No node has this channel.");
    troubles.update(data.troubles ?? []);
    const total = data.total ?? {};
    latest = { ...total, topic, channel };
    on = data.nodes ?? [];
    facts.update(total);
    facts.hidden = parts_.hidden = !data.found;
    nodes.update(data.nodes ?? []);
    const more = data.nodes.some((each) => each.is_pumpline) ? [{ label: "Rewind…", run: () => rewind(latest) }] : [];
    if (session.is_admin) doing.update(data.found ? { row: latest, nodes: data.nodes.filter((each) => each.ok), more } : null);
    if (!end && data.found) {
      const names = data.nodes.map((each) => each.node);
      const made = parts([
        { id: "messages", label: "Messages", make: () => messageBrowser({ topic, channel, nodes: names, states: ["waiting", "in_flight", "deferred", "requeued"] }) },
        { id: "dead", label: "Dead letters", make: () => deadLetters(session, topic, channel) },
      ]);
      replace(tabs, made);
      const ends = [made.start(), consumers.start()];
      end = () => ends.forEach((each) => each());
    }
  }

  const more = () => get("/api/v1/history", { topic, channel }).then((data) => [waiting, rates, lags].forEach((each) => each.update(data))).catch(() => {});
  return {
    title: `${topic} › ${channel}`,
    element: h(
      "div", {},
      h("div", { class: "title" }, h("h1", {}, link(paths.topic(topic), topic), " › ", channel), doing),
      note, troubles, facts, parts_,
    ),
    start: () => {
      more();
      const timer = setInterval(more, 10_000);
      const stop = live("channel", { topic, channel }, { full: draw, delta: draw, error: (error) => setText(note, error.message) });
      return () => { clearInterval(timer); stop(); end?.(); };
    },
  };
}
