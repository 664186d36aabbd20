// One message: its body, and where it stands in every channel.

import { get } from "./api.js";
import { h, link, paths, replace } from "./dom.js";
import { bytes, count, moment } from "./format.js";
import { bodyView, download } from "./messages.js";
import { name } from "./columns.js";
import { plainTable } from "./table.js";

const WORDS = { waiting: "waits", in_flight: "in flight", deferred: "deferred", requeued: "waits again", finished: "finished, or never to be delivered", hold: "a hold keeps it", passed: "a hold has passed it" };

export function messageView(session, topic, node, offset) {
  const element = h("div", {}, h("h1", {}, link(paths.topic(topic), topic), ` › ${count(Number(offset))}`), h("p", { class: "faint" }, "…"));

  async function look() {
    try {
      const data = await get("/api/v1/message", { topic, node, offset });
      const message = data.message;
      const channels = plainTable("Where it stands", [
        { label: "channel", head: true, show: (row) => link(row.state === "hold" || row.state === "passed" ? `${paths.topic(topic)}?show=holds` : paths.channel(topic, row.channel), name(row.channel)) },
        { label: "state", show: (row) => WORDS[row.state] ?? row.state },
        { label: "attempts", number: true, show: (row) => count(row.attempts) },
        { label: "deferred until", show: (row) => (row.deferred_until_ms ? moment(row.deferred_until_ms) : "") },
      ], { empty: "The topic has no channels." });
      channels.update(data.channels.map((row) => ({ ...row, key: row.channel })));
      replace(
        element,
        h("h1", {}, link(paths.topic(topic), topic), ` › ${count(message.offset)}`),
        h("p", { class: "facts" }, `published ${moment(message.timestamp_ms, { fraction: true })} · ${bytes(message.bytes)} · id `, h("code", {}, message.id), " · ", link(paths.node(node), node)),
        h("section", {}, h("h2", {}, "Where it stands"), channels),
        h("p", { class: "bad" }, data.warning),
        h("section", {}, h("h2", {}, "Body"), h("p", { class: "faint" }, download(topic, message), message.truncated ? " · only the beginning is shown" : ""), bodyView(message)),
      );
    } catch (error) {
      replace(element, h("h1", {}, link(paths.topic(topic), topic), ` › ${offset}`), h("p", { class: "bad" }, error.message === "MESSAGE_NOT_FOUND" ? "This message is not in the log any more." : error.message));
    }
  }

  return { title: `${topic} › ${offset}`, element, start: () => { look(); } };
}
