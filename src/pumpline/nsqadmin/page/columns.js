// The columns of topics, channels, nodes and consumers, the same wherever they are listed.

import { h, link, paths, setText } from "./dom.js";
import { spark } from "./chart.js";
import { ago, bytes, count, lag, rate } from "./format.js";

const SHORT = 16; // characters, of a name that is not cut to make room for a long one

/** A text of somebody else, cut where the column ends; all of it is in the title. */
export const name = (text) => h("span", { class: text?.length <= SHORT ? "name short" : "name", title: text }, text);

/** Words beside a name: paused, trouble. */
function marks(row) {
  const element = h("span", { class: "marks" });
  element.update = (news) => {
    const words = [];
    if (news.paused) words.push("paused");
    if (news.troubles) words.push("▲");
    setText(element, words.join(" "));
    element.title = news.troubles ? `${news.troubles} things to look at` : "";
  };
  element.update(row);
  return element;
}

function named(makeLink) {
  return (row) => {
    const beside = marks(row);
    const element = h("span", { class: "named" }, makeLink(row), beside);
    element.update = (news) => beside.update(news);
    return element;
  };
}

function sparkCell(label) {
  return (row) => {
    const element = spark(row.spark, { label });
    const draw = element.update;
    element.update = (news) => draw(news.spark ?? news);
    return element;
  };
}

function lagCell(row) {
  const element = h("span");
  element.update = (news) => {
    const late = news.lag_ms > 60_000 && news.waiting > 0;
    setText(element, lag(news.lag_ms));
    element.className = late ? "late" : news.lag_ms === null || news.lag_ms === undefined ? "nothing" : "";
  };
  element.update(row);
  return element;
}

const figure = (id, label, show = count, more = {}) => ({ id, label, number: true, show: (row) => show(row[id]), ...more });
const lagColumn = { id: "lag_ms", label: "lag", number: true, show: lagCell, title: "how old the oldest message is that is not finished" };
const sparkColumn = (label) => ({ id: "spark", label: "last 10 min", sort: false, class: "spark-cell", width: "col-spark", show: sparkCell(label) });

export const topicColumns = [
  { id: "topic", label: "topic", head: true, show: named((row) => link(paths.topic(row.topic), name(row.topic))) },
  figure("in_rate", "in/s", rate),
  sparkColumn("messages published, the last ten minutes"),
  figure("channels", "channels", count, { class: "wide" }),
  figure("consumers", "consumers", count, { class: "wide" }),
  figure("waiting", "waiting"),
  figure("in_flight", "in flight", count, { class: "wide" }),
  lagColumn,
  figure("log_bytes", "disk", bytes, { class: "wide", title: "size of the log; a Go nsqd has none" }),
  figure("message_count", "messages", count, { class: "wide" }),
  figure("nodes", "nodes", count, { class: "wide", width: "col-small" }),
];

const channelFigures = [
  figure("finish_rate", "done/s", rate),
  sparkColumn("messages finished, the last ten minutes"),
  figure("waiting", "waiting"),
  lagColumn,
  figure("in_flight", "in flight"),
  figure("deferred", "deferred", count, { class: "wide" }),
  figure("requeue_rate", "requeued/s", rate, { class: "wide" }),
  figure("timeout_rate", "timeouts/s", rate, { class: "wide" }),
  figure("consumers", "consumers"),
];

/** A hold is no channel: it is a reader's place in the topic, and shown there. */
function channelName(row) {
  if (!row.hold) return link(paths.channel(row.topic, row.channel), name(row.channel));
  return [link(`${paths.topic(row.topic)}?show=holds`, name(row.channel)), h("span", { class: "faint" }, " hold")];
}

export const channelColumns = [
  { id: "channel", label: "channel", head: true, show: named((row) => h("span", { class: "named" }, channelName(row))) },
  ...channelFigures,
];

export const allChannelColumns = [
  { id: "topic", label: "channel", head: true, show: named((row) => h("span", { class: "named" }, link(paths.topic(row.topic), name(row.topic)), h("span", { class: "faint" }, "›"), channelName(row))) },
  ...channelFigures,
];

function state(row) {
  const element = h("span");
  element.update = (news) => {
    const ok = news.ok && (!news.health || news.health === "OK");
    const text = news.ok ? (ok ? "ok" : news.health) : `${news.error}, for ${ago(news.since_ms)}`;
    setText(element, text);
    element.className = ok ? "faint" : "bad";
  };
  element.update(row);
  return element;
}

export const nodeColumns = [
  { id: "node", label: "node", head: true, show: named((row) => link(paths.node(row.node), name(row.node))) },
  { id: "ok", label: "state", class: "state", sort: false, show: state },
  { id: "version", label: "version", width: "col-text", show: (row) => [row.version ?? "", row.pumpline ? "pumpline" : ""].filter(Boolean).join(" ") },
  figure("in_rate", "in/s", rate),
  sparkColumn("messages published, the last ten minutes"),
  figure("finish_rate", "done/s", rate),
  figure("waiting", "waiting"),
  figure("in_flight", "in flight"),
  figure("topics", "topics"),
  figure("consumers", "consumers"),
  { id: "disk_free", label: "disk free", number: true, show: (row) => bytes(row.disk_free) },
];

/** How long, with the way to the message. */
const holdsLongest = (topic) => (row) => {
  const held = lag(row.longest_held_ms);
  if (row.longest_held_offset === null || row.longest_held_offset === undefined) return held;
  return link(paths.message(topic, row.node, row.longest_held_offset), held);
};

/** A button that stays the same, with its focus, while the figures of its row change. */
function actCell(label, about, run) {
  return (row) => {
    let latest = row;
    const element = h("button", { type: "button", class: "small", "aria-label": `${label} ${about(row)}`, onclick: () => run(latest) }, `${label}…`);
    element.update = (news) => { latest = news; };
    return element;
  };
}

/** `disconnect(row)`, where somebody may do that. */
export const consumerColumns = (topic, disconnect = null) => [
  { id: "remote_address", label: "address", head: true, show: (row) => name(row.remote_address) },
  { id: "client_id", label: "client", show: (row) => name([row.client_id, row.hostname].filter((text, index, all) => text && all.indexOf(text) === index).join(" @ ")) },
  { id: "user_agent", label: "agent", show: (row) => name(row.user_agent ?? "") },
  { id: "node", label: "node", show: (row) => link(paths.node(row.node), name(row.node)) },
  figure("ready_count", "RDY", count, { width: "col-small" }),
  figure("in_flight", "in flight", count, { width: "col-small" }),
  { id: "longest_held_ms", label: "holds longest", number: true, width: "col-spark", title: "how long its oldest message is in flight", show: holdsLongest(topic) },
  figure("done_rate", "done/s", rate, { width: "col-small" }),
  figure("finish_count", "finished"),
  figure("requeue_count", "requeued", count, { class: "wide" }),
  { id: "connected_at_ms", label: "connected", number: true, show: (row) => ago(row.connected_at_ms) },
  ...(disconnect ? [{ id: "act", label: "", sort: false, class: "act", width: "col-act", show: actCell("Disconnect", (row) => row.remote_address, disconnect) }] : []),
];
