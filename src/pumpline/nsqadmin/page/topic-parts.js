// Parts of a topic's page: settings with what retention will do, holds, dead letters.

import { act } from "./actions.js";
import { get, post } from "./api.js";
import { confirm, fail, tellResults, toast } from "./dialog.js";
import { h, link, paths, replace, setText } from "./dom.js";
import { ago, bytes, count, many, moment } from "./format.js";
import { bodyText } from "./messages.js";
import { plainTable } from "./table.js";

const EXPLAINED = {
  retention_time: "how long messages stay after every channel has finished them",
  retention_bytes: "how many bytes of them stay",
  message_ttl: "a message that waits longer is dropped",
  max_attempts: "after so many deliveries a message becomes a dead letter",
  dead_letter_topic: "where dead letters go",
  dead_letter_form: "json or body",
  max_depth: "how many messages may wait in a channel",
  max_bytes: "how many bytes may wait",
  overflow: "what happens beyond: refuse, or drop the oldest",
};

function explained(node) {
  const kept = node.retention;
  if (!kept) return node.ok ? "" : `${node.node}: ${node.error}`;
  const when = kept.deletes_at_ms ? (kept.deletes_at_ms <= Date.now() ? "is old enough now" : `is old enough at ${moment(kept.deletes_at_ms)}`) : "has no date";
  const by = kept.kept_by?.length ? ` It is kept by ${kept.kept_by.join(", ")}.` : "";
  return `${node.node}: ${bytes(kept.log_bytes)} in the log, limits ${kept.time} and ${bytes(kept.bytes)}; the oldest message ${when}.${by}`;
}

export function settings(session, topic) {
  const form = h("form", { class: "settings" });
  const notes = h("ul", { class: "faint" });
  const note = h("p", { role: "status" });

  async function look() {
    try {
      const data = await get("/api/v1/settings", { topic });
      const inputs = Object.entries(data.settings ?? {}).map(([name, value]) => {
        const input = h("input", { type: "text", value: value === null ? "" : String(value), placeholder: "default", disabled: !session.is_admin, "data-name": name, "data-was": value === null ? "" : String(value) });
        const differs = data.differ?.includes(name) ? h("b", { class: "bad" }, " not the same on all nodes") : "";
        return h("label", {}, h("span", {}, name, differs), input, h("small", { class: "faint" }, EXPLAINED[name] ?? ""));
      });
      replace(form, inputs, session.is_admin && inputs.length > 0 && h("div", { class: "buttons" }, h("button", { type: "submit" }, "Change")));
      replace(notes, data.nodes.map(explained).filter(Boolean).map((text) => h("li", {}, text)));
      setText(note, inputs.length ? data.message : "No node here has settings: they are pumpline's.");
    } catch (error) {
      setText(note, error.message);
    }
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const changed = {};
    for (const input of form.querySelectorAll("input")) {
      if (input.value === input.dataset.was) continue;
      const text = input.value.trim();
      changed[input.dataset.name] = text === "" ? null : /^-?\d+$/.test(text) ? Number(text) : text;
    }
    if (!Object.keys(changed).length) return;
    try {
      tellResults("Settings", await post("/api/v1/settings", { topic, settings: changed }));
      toast("Settings changed.");
    } catch (error) {
      fail(error);
    }
    look();
  });
  const element = h("div", {}, note, form, h("h3", {}, "What retention deletes next"), notes);
  element.start = () => { look(); };
  return element;
}

export function holds(session, topic) {
  const table = plainTable("Holds", [
    { label: "hold", head: true, show: (row) => row.hold },
    { label: "node", show: (row) => link(paths.node(row.node), row.node) },
    { label: "at offset", number: true, show: (row) => count(row.offset) },
    { label: "behind", number: true, show: (row) => count(row.depth) },
    { label: "pins", number: true, show: (row) => `${bytes(row.bytes)}${row.bytes_max ? ` of ${bytes(row.bytes_max)}` : ""}` },
    { label: "last commit", number: true, show: (row) => (row.committed_at_ms ? `${ago(row.committed_at_ms)} ago` : "–") },
    { label: "", show: (row) => h("span", {}, row.dropped ? h("b", { class: "bad" }, "dropped: it pinned too much ") : "", session.is_admin ? h("button", { type: "button", class: "danger", onclick: () => remove(row) }, "Delete…") : "") },
  ], { empty: "No reader such as Spark keeps a place here." });
  const note = h("p", { class: "faint" }, "A hold keeps messages for a reader, such as a Spark query, until it has them. Its name is the query's.");

  async function look() {
    try {
      const data = await get("/api/v1/holds", { topic });
      table.update(data.holds);
    } catch (error) {
      setText(note, error.message);
    }
  }

  async function remove(row) {
    const text = `Its reader loses its place. ${bytes(row.bytes)} may be deleted then.`;
    if (await confirm({ title: `Delete the hold ${row.hold}?`, text, verb: "Delete", name: row.hold })) {
      await act("delete_hold", [{ topic: row.topic, hold: row.hold }], { node: row.node, after: look });
    }
  }

  const element = h("div", {}, note, table);
  element.start = () => { look(); const timer = setInterval(look, 5000); return () => clearInterval(timer); };
  return element;
}

export function deadLetters(session, topic) {
  const list = h("div", { class: "messages" });
  const note = h("p", { class: "faint", role: "status" });
  const contains = h("input", { type: "search", placeholder: "contains", "aria-label": "Contains" });
  const more = h("button", { type: "button", hidden: true }, "More");
  const all = h("button", { type: "button", hidden: true }, "Publish all again…");
  let next = "";
  let total = 0;

  async function again(body, what) {
    try {
      const answer = await post("/api/v1/dead-letters", { topic, ...body });
      toast(`Published ${what}: ${many(answer.published, "message")}.`);
      tellResults("Publish again", answer);
    } catch (error) {
      fail(error);
    }
  }

  function row(letter) {
    const shown = bodyText(letter);
    return h("details", { class: "message" },
      h("summary", {},
        h("span", { class: "when" }, moment(letter.letter_timestamp_ms)),
        h("span", { class: "body" }, (letter.body ?? shown.text).slice(0, 300)),
        h("span", { class: "faint facts" }, `${letter.channel ?? ""}, ${many(letter.attempts ?? 0, "attempt")}`)),
      h("div", { class: "opened" },
        h("p", { class: "faint" }, "id ", h("code", {}, letter.id ?? ""), ` on ${letter.node}, published ${moment(letter.timestamp_ms)} `,
          session.is_admin && h("button", { type: "button", onclick: () => again({ letters: [{ node: letter.node, letter_offset: letter.letter_offset }] }, "one again") }, "Publish again")),
        h("pre", { tabindex: "0" }, shown.text)));
  }

  async function look(following = "") {
    try {
      const data = await get("/api/v1/dead-letters", { topic, contains: contains.value, next: following, limit: 20 });
      if (!following) replace(list);
      list.append(...data.letters.map(row));
      next = data.next;
      total = data.total;
      more.hidden = !next;
      all.hidden = !session.is_admin || !total;
      const failed = data.boxes.filter((box) => !box.ok).map((box) => `${box.node}: ${box.error}`);
      setText(note, [total ? `${many(total, "dead letter")}.` : "No dead letters. They appear when max_attempts is set, and exceeded.", ...failed].join(" "));
    } catch (error) {
      setText(note, error.message);
    }
  }

  all.addEventListener("click", async () => {
    const text = [`${many(total, "message")} will be published to ${topic} again. The letters stay where they are.`];
    if (await confirm({ title: "Publish all again?", text, verb: "Publish", name: topic })) again({ all: true, contains: contains.value || undefined }, "all again");
  });
  more.addEventListener("click", () => look(next));
  const element = h("div", {}, h("form", { class: "tools", onsubmit: (event) => { event.preventDefault(); look(); } }, contains, h("button", { type: "submit" }, "Look"), all), note, list, more);
  element.start = () => { look(); };
  return element;
}
