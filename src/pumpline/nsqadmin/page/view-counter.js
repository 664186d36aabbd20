// How many messages channels took while this page is open, as NSQ's counter.

import { live } from "./api.js";
import { allChannelColumns } from "./columns.js";
import { h, setText } from "./dom.js";
import { count, rate } from "./format.js";
import { liveTable } from "./table.js";

const columns = [
  allChannelColumns[0],
  { id: "in_rate", label: "in/s", number: true, show: (row) => rate(row.in_rate) },
  ...allChannelColumns.filter((column) => ["finish_rate", "spark", "consumers"].includes(column.id)),
  { id: "message_count", label: "messages", number: true, show: (row) => count(row.message_count) },
];

export function counterView() {
  const total = h("p", { class: "counter" }, "0");
  const note = h("p", { class: "faint" }, "messages that channels took since this page was opened");
  const table = liveTable({ view: "table/channels", caption: "Channels", columns, sort: "-in_rate", searchable: false, empty: "There are no channels yet." });
  let taken = 0;
  let last = null;

  function draw({ totals }) {
    if (last !== null) taken += Math.max(totals.taken - last, 0); // less, after a restart of nsqadmin
    last = totals.taken;
    setText(total, count(taken));
  }

  return {
    title: "Counter",
    element: h("div", {}, h("h1", {}, "Counter"), total, note, h("section", {}, h("h2", {}, "Busiest channels"), table)),
    start: () => {
      const ends = [live("overview", {}, { full: draw, delta: draw, error: () => {} }), table.start()];
      return () => ends.forEach((end) => end());
    },
  };
}
