// All nsqds, and one of them.

import { buttons, act } from "./actions.js";
import { get } from "./api.js";
import { chart } from "./chart.js";
import { allChannelColumns, name, nodeColumns, topicColumns } from "./columns.js";
import { confirm } from "./dialog.js";
import { h, link, paths, replace, setText } from "./dom.js";
import { ago, bytes, count, lag, rate } from "./format.js";
import { liveTable, plainTable } from "./table.js";
import { NO_NODES, troubleList } from "./view-overview.js";

export function nodesView() {
  const table = liveTable({
    view: "table/nodes", caption: "Nodes", columns: nodeColumns, sort: "node",
    filters: [{ id: "trouble", label: "needs a look" }, { id: "silent", label: "silent" }],
    empty: NO_NODES,
  });
  return { title: "Nodes", element: h("div", {}, h("h1", {}, "Nodes"), table), start: () => table.start() };
}

/** Histories are of the whole cluster, and how many nodes have it is not the question here. */
const ofNode = (columns) => columns.filter((column) => column.id !== "spark" && column.id !== "nodes");

function tombstone(node, rows) {
  const text = ["Consumers that ask an nsqlookupd stop going there for it, and the topic is deleted on that node.", `${count(rows.length)} selected: ${rows.map((row) => row.topic).slice(0, 10).join(", ")}`];
  confirm({ title: `Tombstone on ${node}?`, text, verb: "Tombstone", name: rows.length === 1 ? rows[0].topic : `tombstone ${rows.length}` })
    .then((ok) => ok && act("tombstone", rows, { node }));
}

export function nodeView(session, node) {
  const troubles = troubleList(false);
  const facts = h("p", { class: "facts" });
  const rates = chart("Messages a second", [{ id: "in_rate", label: "in", show: rate }, { id: "out_rate", label: "out", show: rate }, { id: "finish_rate", label: "finished", show: rate }]);
  const depth = chart("Waiting", [{ id: "waiting", label: "waiting", show: count }]);
  const registered = h("p", { class: "faint" });
  const bulk = session.is_admin ? (rows) => [buttons(rows, { node }), h("button", { type: "button", class: "danger", onclick: () => tombstone(node, rows) }, "Tombstone…")] : null;
  const topics = liveTable({ view: "table/topics", caption: "Topics of this node", columns: ofNode(topicColumns), sort: "topic", parameters: { node }, bulk, prefix: "t_", empty: "This node has no topics." });
  const channels = liveTable({ view: "table/channels", caption: "Channels of this node", columns: ofNode(allChannelColumns), sort: "topic", parameters: { node }, prefix: "c_", bulk: session.is_admin ? (rows) => buttons(rows, { node }) : null, empty: "This node has no channels." });
  const producers = plainTable("Producers", [
    { label: "address", head: true, show: (row) => name(row.remote_address) },
    { label: "client", show: (row) => name(row.client_id) },
    { label: "agent", show: (row) => name(row.user_agent) },
    { label: "topic", show: (row) => (row.topic ? link(paths.topic(row.topic), name(row.topic)) : "") },
    { label: "published", number: true, show: (row) => count(row.count) },
  ], { empty: "Nobody is connected to publish." });
  const problem = h("p", { class: "bad", hidden: true });
  const rest = h(
    "div", { hidden: true },
    h("div", { class: "charts" }, rates, depth),
    h("section", {}, h("h2", {}, "Topics"), topics),
    h("section", {}, h("h2", {}, "Channels"), channels),
    h("section", {}, h("h2", {}, "Producers"), producers),
  );
  let ends = null; // of the tables, once there is a node
  let left = false;

  function draw(data) {
    problem.hidden = true;
    rest.hidden = false;
    if (!ends && !left) ends = [topics.start(), channels.start()];
    const row = data.node;
    troubles.update(data.troubles ?? []);
    const version = [row.version && `nsqd ${row.version}`, row.pumpline && `pumpline ${row.pumpline}`].filter(Boolean).join(", ");
    const memory = data.memory?.heap_in_use_bytes;
    setText(facts, [
      row.ok ? (row.health ?? "answers") : `does not answer: ${row.error}, for ${ago(row.since_ms)}`,
      row.hostname, version, row.started_at_ms && `up ${lag(Date.now() - row.started_at_ms)}`,
      row.disk_total && `disk ${bytes(row.disk_free)} free of ${bytes(row.disk_total)}`,
      memory && `memory ${bytes(memory)}`,
    ].filter(Boolean).join(" · "));
    const missing = (data.registered ?? []).filter((each) => !each.known).map((each) => each.lookupd);
    setText(registered, !data.registered?.length ? "" : missing.length ? `Not known at ${missing.join(", ")}.` : `Known at ${data.registered.map((each) => each.lookupd).join(", ")}.`);
    producers.update((data.producers ?? []).map((each) => ({ ...each, key: each.remote_address + each.topic })));
  }

  // Asked for, not streamed: browsers have six connections to one server, and the tables have two of them.
  const look = () => get("/api/v1/node", { node }).then(draw).catch((error) => { problem.hidden = false; replace(problem, error.message === "NODE_NOT_FOUND" ? "No nsqd of this cluster has this address." : error.message); });
  const more = () => get("/api/v1/history", { node }).then((data) => { rates.update(data); depth.update(data); }).catch(() => {});
  return {
    title: node,
    element: h(
      "div", {}, h("h1", {}, node), problem, facts, registered, troubles, rest,
    ),
    start: () => {
      more();
      look();
      const timers = [setInterval(more, 10_000), setInterval(() => document.hidden || look(), 5000)];
      return () => { left = true; timers.forEach(clearInterval); ends?.forEach((end) => end()); };
    },
  };
}
