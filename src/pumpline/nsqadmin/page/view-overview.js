// The first page: what is wrong, the cluster in one line, and its topics.

import { live } from "./api.js";
import { spark } from "./chart.js";
import { topicColumns } from "./columns.js";
import { h, link, paths, replace, setText } from "./dom.js";
import { ago, count, rate } from "./format.js";
import { liveTable } from "./table.js";
import { topicFilters } from "./view-topics.js";

const TROUBLES_SHOWN = 8;
export const NO_NODES = "No nsqd is known yet. Start one with the --lookupd-tcp-address of an nsqlookupd that nsqadmin asks, or name its HTTP address to nsqadmin with --nsqd-http-address.";

/** What a trouble is about, as a link. */
function about(trouble) {
  if (trouble.topic && trouble.channel) return link(paths.channel(trouble.topic, trouble.channel), `${trouble.topic} › ${trouble.channel}`);
  if (trouble.topic) return link(paths.topic(trouble.topic), trouble.topic);
  return trouble.node ? link(paths.node(trouble.node), trouble.node) : h("span", {}, trouble.lookupd ?? "");
}

export function troubleList(title = true) {
  const element = h("section", { class: "troubles", "aria-label": "What needs a look", "aria-live": "polite" });
  let key = "";
  let all = false;
  element.update = (troubles, total = troubles.length, calm = "Nothing needs a look.") => {
    const news = JSON.stringify([troubles.map((each) => [each.kind, each.topic, each.channel, each.node, each.text]), total, all, calm]);
    if (news === key) return;
    key = news;
    if (!troubles.length) {
      replace(element, title && h("p", { class: "calm" }, calm));
      return;
    }
    const shown = all ? troubles : troubles.slice(0, TROUBLES_SHOWN);
    const more = total - shown.length;
    replace(
      element,
      title && h("h2", {}, `▲ ${count(total)} ${total === 1 ? "thing" : "things"} to look at`),
      h("ul", {}, shown.map((each) => h("li", { class: each.severity }, about(each), h("span", {}, each.severity === "trouble" ? "▲ " : "△ ", each.text)))),
      more > 0 && troubles.length > shown.length && h("button", { type: "button", class: "plain", onclick: () => { all = true; element.update(troubles, total, calm); } }, `${count(more)} more`),
    );
  };
  return element;
}

/** A figure with its name; with a line if it has a history. */
export function gauge(label, withLine = false) {
  const value = h("b", {}, "–");
  const line = withLine ? spark([], { width: 72, label: `${label}, the last ten minutes` }) : null;
  const element = h("div", { class: "gauge" }, h("span", { class: "label" }, label), value, line);
  element.update = (text, values) => {
    setText(value, text);
    line?.update(values);
  };
  return element;
}

/** Figures side by side: `figures` are {id: [label, show]}, `update(row)` shows another row. */
export function gauges(label, figures) {
  const made = Object.entries(figures).map(([id, [name, show]]) => ({ id, show, element: gauge(name) }));
  const element = h("section", { class: "gauges", "aria-label": label }, made.map((each) => each.element));
  element.update = (row) => made.forEach((each) => each.element.update(each.show(row[each.id], row)));
  return element;
}

export function overviewView() {
  const troubles = troubleList();
  const leftOut = h("p", { class: "faint", hidden: true });
  const rates = { in_rate: gauge("in/s", true), out_rate: gauge("out/s", true), finish_rate: gauge("finished/s", true), waiting: gauge("waiting", true) };
  const counts = { in_flight: gauge("in flight"), deferred: gauge("deferred"), topics: gauge("topics"), channels: gauge("channels"), consumers: gauge("consumers"), nodes: gauge("nodes") };
  const table = liveTable({ view: "table/topics", caption: "Topics", columns: topicColumns, sort: "topic", filters: topicFilters, empty: "There are no topics yet. The first publish makes one." });
  const element = h(
    "div", {},
    h("h1", { class: "hidden" }, "Overview"),
    troubles,
    h("section", { class: "gauges", "aria-label": "The cluster" }, Object.values(rates), Object.values(counts)),
    leftOut,
    h("section", {}, h("h2", {}, "Topics"), table),
  );

  function draw(data) {
    troubles.update(data.troubles, data.troubles_total, data.totals.nodes ? undefined : NO_NODES);
    for (const [id, each] of Object.entries(rates)) each.update((id === "waiting" ? count : rate)(data.totals[id]), data.history[id]);
    for (const [id, each] of Object.entries(counts)) {
      const silent = id === "nodes" && data.totals.silent ? ` (${data.totals.silent} silent)` : "";
      each.update(count(data.totals[id]) + silent);
    }
    leftOut.hidden = !data.left_out.length;
    const names = data.left_out.slice(0, 5).map((each) => `${each.node ?? each.lookupd} (silent for ${ago(each.since_ms)})`);
    const others = data.left_out.length - names.length;
    setText(leftOut, `Figures are without ${names.join(", ")}${others > 0 ? ` and ${count(others)} more` : ""}.`);
  }

  return {
    title: "Overview",
    element,
    start: () => {
      const ends = [live("overview", {}, { full: draw, delta: draw, error: () => {} }), table.start()];
      return () => ends.forEach((end) => end());
    },
  };
}
