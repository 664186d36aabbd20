// nsqlookupds: what they know, and topics that no nsqd has.

import { create, remove } from "./actions.js";
import { live } from "./api.js";
import { h, link, paths, setText } from "./dom.js";
import { ago, count } from "./format.js";
import { plainTable } from "./table.js";

export function lookupView(session) {
  const lookupds = plainTable("nsqlookupds", [
    { label: "nsqlookupd", head: true, show: (row) => row.lookupd },
    { label: "state", class: "state", show: (row) => h("span", { class: row.ok ? "faint" : "bad" }, row.ok ? "ok" : `${row.error}, for ${ago(row.since_ms)}`) },
    { label: "version", show: (row) => row.version ?? "" },
    { label: "nodes", number: true, show: (row) => count(row.nodes) },
    { label: "topics", number: true, show: (row) => count(row.topics) },
    { label: "nodes it does not know", show: (row) => (row.missing ?? []).join(", ") },
  ], { empty: session.mode === "nsqd" ? "nsqadmin was told of nsqds, not of nsqlookupds." : "No nsqlookupd is known." });
  const inactive = plainTable("Topics that no nsqd has", [
    { label: "topic", head: true, show: (row) => link(paths.topic(row.topic), row.topic) },
    { label: "channels", show: (row) => row.channels.join(", ") },
    { label: "", show: (row) => (session.is_admin ? h("button", { type: "button", class: "danger", onclick: () => remove([{ topic: row.topic }]) }, "Delete…") : "") },
  ], { empty: session.mode === "nsqd" ? "Only nsqlookupds know topics that no nsqd has." : "None: every topic that is known is on a node." });
  const tombstones = plainTable("Tombstones", [
    { label: "topic", head: true, show: (row) => link(paths.topic(row.topic), row.topic) },
    { label: "node", show: (row) => row.node },
  ], { empty: "None: consumers are sent to every node that has their topic." });
  const note = h("p", { class: "bad", role: "status" });

  function draw(data) {
    lookupds.update(data.lookupds.map((row) => ({ ...row, key: row.lookupd })));
    inactive.update(data.inactive.map((row) => ({ ...row, key: row.topic })));
    tombstones.update(data.tombstones.map((row) => ({ ...row, key: `${row.topic} ${row.node}` })));
    setText(note, data.message ?? "");
  }

  return {
    title: "Lookup",
    element: h(
      "div", {},
      h("div", { class: "title" }, h("h1", {}, "nsqlookupds"), session.is_admin && h("button", { type: "button", onclick: () => create(session) }, "New topic…")),
      note, lookupds,
      h("section", {}, h("h2", {}, "Topics that no nsqd has"), inactive),
      h("section", {}, h("h2", {}, "Tombstones"), tombstones),
    ),
    start: () => live("lookupds", {}, { full: draw, delta: draw, error: (error) => setText(note, error.message) }),
  };
}

