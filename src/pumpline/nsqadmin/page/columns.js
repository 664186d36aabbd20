// The columns of topics, channels, nodes and consumers, the same wherever they are listed.

import { h, link, paths, setText } from "./dom.js";
import { spark } from "./chart.js";
import { ago, bytes, count, lag, rate } from "./format.js";

const name = (text) => h("span", { class: "name", title: text }, text);

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
    const element = h("span", {}, makeLink(row), " ", beside);
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
    const late = news.lag_ms > 60_000;
    setText(element, lag(news.lag_ms));
    element.className = late ? "late" : "";
  };
  element.update(row);
  return element;
}

const figure = (id, label, show = count, more = {}) => ({ id, label, number: true, show: (row) => show(row[id]), ...more });
const lagColumn = { id: "lag_ms", label: "lag", number: true, show: lagCell, title: "how old the oldest message is that is not finished" };
const sparkColumn = (label) => ({ id: "spark", label: "last 10 min", sort: false, class: "spark-cell", show: sparkCell(label) });

export const topicColumns = [
  { id: "topic", label: "topic", head: true, show: named((row) => link(paths.topic(row.topic), name(row.topic))) },
  figure("in_rate", "in/s", rate),
  sparkColumn("messages published, the last ten minutes"),
  figure("channels", "channels", count, { class: "wide" }),
  figure("consumers", "consumers", count, { class: "wide" }),
  figure("waiting", "waiting"),
  figure("in_flight", "in flight", count, { class: "wide" }),
  lagColumn,
  figure("message_count", "messages", count, { class: "wide" }),
  figure("nodes", "nodes", count, { class: "wide" }),
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

const channelName = (row) => link(paths.channel(row.topic, row.channel), name(row.channel));

export const channelColumns = [
  { id: "channel", label: "channel", head: true, show: named((row) => h("span", {}, channelName(row), row.hold ? h("span", { class: "faint" }, " hold") : "")) },
  ...channelFigures,
];

export const allChannelColumns = [
  { id: "topic", label: "channel", head: true, show: named((row) => h("span", {}, link(paths.topic(row.topic), name(row.topic)), " › ", channelName(row))) },
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
  { id: "ok", label: "state", sort: false, show: state },
  { id: "version", label: "version", show: (row) => [row.version ?? "", row.pumpline ? "pumpline" : ""].filter(Boolean).join(" ") },
  figure("in_rate", "in/s", rate),
  sparkColumn("messages published, the last ten minutes"),
  figure("finish_rate", "done/s", rate),
  figure("waiting", "waiting"),
  figure("in_flight", "in flight"),
  figure("topics", "topics"),
  figure("consumers", "consumers"),
  { id: "disk_free", label: "disk free", number: true, show: (row) => bytes(row.disk_free) },
];

export const consumerColumns = [
  { id: "remote_address", label: "address", head: true, show: (row) => row.remote_address },
  { id: "client_id", label: "client", show: (row) => [row.client_id, row.hostname].filter((text, index, all) => text && all.indexOf(text) === index).join(" @ ") },
  { id: "user_agent", label: "agent", show: (row) => row.user_agent },
  { id: "node", label: "node", show: (row) => link(paths.node(row.node), name(row.node)) },
  figure("ready_count", "RDY"),
  figure("in_flight", "in flight"),
  { id: "longest_held_ms", label: "holds longest", number: true, title: "how long its oldest message is in flight", show: (row) => lag(row.longest_held_ms) },
  figure("done_rate", "done/s", rate),
  figure("finish_count", "finished"),
  figure("requeue_count", "requeued"),
  { id: "connected_at_ms", label: "connected", number: true, show: (row) => ago(row.connected_at_ms) },
];
