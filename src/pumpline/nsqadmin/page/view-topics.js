// All topics, or all channels.

import { buttons, create } from "./actions.js";
import { allChannelColumns, topicColumns } from "./columns.js";
import { address, h } from "./dom.js";
import { liveTable } from "./table.js";

export const topicFilters = [
  { id: "trouble", label: "needs a look" },
  { id: "no_consumers", label: "no consumers" },
  { id: "waiting", label: "waiting" },
  { id: "paused", label: "paused" },
];

export function topicsView(session) {
  const ofChannels = new URLSearchParams(location.search).get("of") === "channels";
  const table = liveTable({
    view: ofChannels ? "table/channels" : "table/topics",
    caption: ofChannels ? "Channels" : "Topics",
    columns: ofChannels ? allChannelColumns : topicColumns,
    sort: "topic",
    filters: ofChannels ? [...topicFilters, { id: "holds", label: "holds" }] : [...topicFilters, { id: "dead_letters", label: "dead letters" }],
    bulk: session.is_admin ? (rows) => buttons(rows) : null,
    empty: "There are none yet. The first publish makes a topic, the first consumer a channel.",
  });
  const tab = (label, of, current) => h("a", { href: address("/topics", { of }), "aria-current": current ? "true" : null }, label);
  return {
    title: ofChannels ? "Channels" : "Topics",
    element: h(
      "div", {},
      h("div", { class: "title" },
        h("h1", { class: "hidden" }, ofChannels ? "Channels" : "Topics"),
        h("div", { class: "tabs" }, tab("Topics", "", !ofChannels), tab("Channels", "channels", ofChannels)),
        session.is_admin && h("button", { type: "button", onclick: () => create(session) }, "New topic…")),
      table,
    ),
    start: () => table.start(),
  };
}
