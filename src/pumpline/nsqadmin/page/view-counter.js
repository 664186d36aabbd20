// How many messages were delivered while this page is open, as NSQ's counter.

import { get } from "./api.js";
import { h, link, paths, setText } from "./dom.js";
import { count, rate } from "./format.js";
import { plainTable } from "./table.js";

const EVERY_MS = 1000;
const ROWS_MAX = 50;

export function counterView() {
  const total = h("p", { class: "counter", role: "status" }, "0");
  const note = h("p", { class: "faint" }, "messages that channels took since this page was opened");
  const table = plainTable("Channels that took messages", [
    { label: "channel", head: true, show: (row) => h("span", {}, link(paths.topic(row.topic), row.topic), " › ", link(paths.channel(row.topic, row.channel), row.channel)) },
    { label: "node", show: (row) => row.node },
    { label: "messages", number: true, show: (row) => count(row.taken) },
    { label: "per second", number: true, show: (row) => rate(row.rate) },
  ], { empty: "Nothing yet." });
  const first = new Map();
  let last = null;

  async function look() {
    let answer;
    try {
      answer = await get("/api/counter");
    } catch (error) {
      setText(note, error.message);
      return;
    }
    const now = performance.now();
    const rows = Object.entries(answer.stats ?? {}).map(([key, row]) => {
      if (!first.has(key) || row.message_count < first.get(key)) first.set(key, row.message_count);
      const before = last?.counts.get(key) ?? row.message_count;
      const seconds = last ? (now - last.at) / 1000 : 1;
      return { key, topic: row.topic_name, channel: row.channel_name, node: row.node, taken: row.message_count - first.get(key), rate: Math.max(row.message_count - before, 0) / seconds, count: row.message_count };
    });
    last = { at: now, counts: new Map(rows.map((row) => [row.key, row.count])) };
    setText(total, count(rows.reduce((sum, row) => sum + row.taken, 0)));
    const busy = rows.filter((row) => row.taken).sort((a, b) => b.taken - a.taken || (a.key < b.key ? -1 : 1));
    table.update(busy.slice(0, ROWS_MAX));
  }

  return {
    title: "Counter",
    element: h("div", {}, h("h1", {}, "Counter"), total, note, table),
    start: () => {
      look();
      const timer = setInterval(() => document.hidden || look(), EVERY_MS);
      return () => clearInterval(timer);
    },
  };
}
