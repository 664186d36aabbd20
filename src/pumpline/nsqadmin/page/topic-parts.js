// Parts of a topic's page: settings with what retention will do, holds, dead letters.

import { act } from "./actions.js";
import { get, post } from "./api.js";
import { confirm, fail, tellResults, toast } from "./dialog.js";
import { h, link, paths, replace, setText } from "./dom.js";
import { ago, bytes, count, many, moment } from "./format.js";
import { name } from "./columns.js";
import { bodyText, bodyView } from "./messages.js";
import { plainTable } from "./table.js";

/** What a setting means, what is so without it, and what it may be if that is one of a few. */
const EXPLAINED = {
  retention_time: ["how long messages stay after every channel has finished them", "as nsqd says"],
  retention_bytes: ["how many bytes of them stay", "as nsqd says"],
  message_ttl: ["a message that is older is not delivered", "never"],
  max_attempts: ["after so many deliveries a message becomes a dead letter", "no limit"],
  dead_letter_topic: ["where dead letters go", "<topic>.dlq"],
  dead_letter_form: ["with where they came from, or the body alone", "json", ["json", "body"]],
  max_depth: ["how many messages may wait in a channel", "no limit"],
  max_bytes: ["how many bytes may wait in a channel", "no limit"],
  when_full: ["what happens to a message beyond that", "reject", ["reject", "drop-oldest"]],
};

/** A field for a setting; empty is what is so without it. */
function field(name, value, disabled) {
  const was = value === null ? "" : String(value);
  const [, without, choices] = EXPLAINED[name] ?? ["", "default"];
  const common = { disabled, "data-name": name, "data-was": was };
  if (!choices) return h("input", { type: "text", placeholder: without, value: was, autocomplete: "off", spellcheck: "false", ...common });
  const options = [h("option", { value: "" }, `${without} (default)`), choices.map((each) => h("option", { value: each }, each))];
  const select = h("select", common, options);
  select.value = was;
  return select;
}

/** What was typed, as JSON has it. */
const typed = (text) => (text === "" ? null : /^-?\d+$/.test(text) ? Number(text) : text);

function explained(node) {
  const kept = node.retention;
  if (!kept) return node.ok ? "" : `${node.node}: ${node.error}`;
  const when = kept.deletes_at_ms ? (kept.deletes_at_ms <= Date.now() ? "may be deleted now" : `may be deleted at ${moment(kept.deletes_at_ms)}`) : "has no date";
  const by = kept.kept_by?.length ? ` It is kept by ${kept.kept_by.join(", ")}.` : "";
  return `${node.node}: ${many(kept.messages, "message")}, ${bytes(kept.log_bytes)}; consumed ones stay ${kept.time ?? "for ever"}, and up to ${bytes(kept.bytes)}. The oldest ${when}.${by}`;
}

export function settings(session, topic) {
  const form = h("form", { class: "settings" });
  const notes = h("ul", { class: "faint" });
  const note = h("p", { role: "status" });

  async function look() {
    try {
      const data = await get("/api/v1/settings", { topic });
      const inputs = Object.entries(data.settings ?? {}).map(([name, value]) => {
        const input = field(name, value, !session.is_admin);
        const differs = data.differ?.includes(name) ? h("b", { class: "bad" }, " not the same on all nodes") : "";
        return h("label", {}, h("span", {}, name, differs), input, h("small", { class: "faint" }, EXPLAINED[name]?.[0] ?? ""));
      });
      replace(form, inputs, session.is_admin && inputs.length > 0 && h("div", { class: "buttons" }, h("button", { type: "submit" }, "Change")));
      replace(notes, data.nodes.sort((a, b) => a.node.localeCompare(b.node)).map(explained).filter(Boolean).map((text) => h("li", {}, text)));
      setText(note, inputs.length ? data.message : "No node here has settings: they are pumpline's.");
    } catch (error) {
      setText(note, error.message);
    }
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const changed = {};
    for (const input of form.querySelectorAll("[data-name]")) {
      if (input.value === input.dataset.was) continue;
      const text = input.value.trim();
      changed[input.dataset.name] = typed(text);
    }
    if (!Object.keys(changed).length) {
      toast("Nothing was changed.");
      return;
    }
    try {
      const before = Object.fromEntries(Object.keys(changed).map((name) => [name, form.querySelector(`[data-name="${name}"]`).dataset.was]));
      tellResults("Settings", await post("/api/v1/settings", { topic, settings: changed }));
      toast(`Changed ${Object.keys(changed).join(", ")}.`, { undo: () => put(before) });
      look();
    } catch (error) {
      fail(error); // what was typed stays, to be mended
    }
  });

  async function put(texts) {
    const back = Object.fromEntries(Object.entries(texts).map(([name, text]) => [name, typed(text)]));
    try {
      tellResults("Settings", await post("/api/v1/settings", { topic, settings: back }));
      look();
    } catch (error) {
      fail(error);
    }
  }


  const element = h("div", {}, note, form, h("h3", {}, "What retention deletes next"), notes);
  element.start = () => { look(); };
  return element;
}

export function holds(session, topic) {
  const table = plainTable("Holds", [
    { label: "hold", head: true, show: (row) => h("span", {}, name(row.hold), row.description ? h("small", { class: "faint about" }, row.description) : "") },
    { label: "node", width: "col-text", show: (row) => link(paths.node(row.node), row.node) },
    { label: "at offset", number: true, show: (row) => count(row.offset) },
    { label: "behind", number: true, show: (row) => count(row.depth) },
    { label: "pins", number: true, width: "col-text", title: "what cannot be deleted before it has moved on", show: (row) => `${bytes(row.bytes)}${row.bytes_max ? ` of ${bytes(row.bytes_max)}` : ""}` },
    { label: "last commit", number: true, show: (row) => (row.committed_at_ms ? `${ago(row.committed_at_ms)} ago` : "never") },
    { label: "", width: "col-text", show: (row) => h("span", {}, row.dropped ? h("b", { class: "bad" }, "dropped: it pinned too much ") : "", session.is_admin ? h("button", { type: "button", class: "danger", onclick: () => remove(row) }, "Delete…") : "") },
  ], { empty: "No reader such as Spark keeps a place here." });
  const note = h("p", { class: "faint" }, "A hold keeps messages for a reader, such as a Spark query, until it has committed them. The query's options hold and holdDescription say its name and whose it is.");
  const absent = h("p", { class: "faint", role: "status" });

  async function look() {
    try {
      const data = await get("/api/v1/holds", { topic });
      table.update(data.holds);
      setText(absent, data.nodes.filter((each) => !each.ok).map((each) => `${each.node}: ${each.error}.`).join(" "));
    } catch (error) {
      setText(absent, error.message);
    }
  }

  async function remove(row) {
    const text = `Its reader loses its place. ${bytes(row.bytes)} may be deleted then.`;
    if (await confirm({ title: `Delete the hold ${row.hold}?`, text, verb: "Delete", name: row.hold })) {
      await act("delete_hold", [{ topic: row.topic, hold: row.hold }], { node: row.node, after: look });
    }
  }

  const element = h("div", {}, note, absent, table);
  element.start = () => { look(); const timer = setInterval(look, 5000); return () => clearInterval(timer); };
  return element;
}

/** Of a topic; with a channel, those that it gave up. */
export function deadLetters(session, topic, channel = "") {
  const list = h("div", { class: "messages" });
  const note = h("p", { class: "faint", role: "status" });
  const contains = h("input", { type: "search", placeholder: "contains", "aria-label": "Contains" });
  const more = h("button", { type: "button", hidden: true }, "More");
  const all = h("button", { type: "button", hidden: true }, "Publish all again…");
  const some = h("button", { type: "button", hidden: true });
  const chosen = new Map();
  let next = "";
  let total = 0;

  async function again(body, what) {
    try {
      const answer = await post("/api/v1/dead-letters", { topic, ...body });
      toast(`Published ${what}: ${many(answer.published, "message")}. One that was published before is there once.`);
      tellResults("Publish again", answer);
    } catch (error) {
      fail(error);
    }
  }

  const placeOf = (letter) => ({ node: letter.node, letter_offset: letter.letter_offset });

  function choose(letter, is) {
    if (is) chosen.set(letter.key, placeOf(letter));
    else chosen.delete(letter.key);
    some.hidden = !chosen.size;
    setText(some, `Publish ${count(chosen.size)} again`);
  }

  function row(letter) {
    const box = session.is_admin && h("input", { type: "checkbox", "aria-label": `select letter ${letter.letter_offset}`, onchange: () => choose(letter, box.checked) });
    const opened = h("div", { class: "opened" },
      letter.reason && h("p", { class: "reason" }, "Given up because: ", letter.reason),
      h("p", { class: "faint" }, "id ", h("code", {}, letter.id ?? ""), ` on ${letter.node} · published ${moment(letter.timestamp_ms)} `,
        session.is_admin && h("button", { type: "button", onclick: () => again({ letters: [placeOf(letter)] }, "one again") }, "Publish again"),
        letter.truncated ? h("b", {}, " only the beginning is shown") : ""),
      bodyView(letter));
    return h("div", { class: "letter" }, box, h("details", { class: "message" },
      h("summary", {},
        h("span", { class: "number offset" }, count(letter.letter_offset)),
        h("span", { class: "when" }, moment(letter.letter_timestamp_ms)),
        h("span", { class: "body" }, (letter.body ?? bodyText(letter).text).slice(0, 300)),
        h("span", { class: "faint facts" }, [letter.channel, letter.reason ? "not valid" : letter.attempts && many(letter.attempts, "attempt"), bytes(letter.bytes)].filter(Boolean).join(", "))),
      opened));
  }

  async function look(following = "") {
    try {
      const data = await get("/api/v1/dead-letters", { topic, channel, contains: contains.value, next: following, limit: 20 });
      if (!following) {
        replace(list);
        chosen.clear();
        some.hidden = true;
      }
      list.append(...data.letters.map(row));
      next = data.next;
      total = data.total;
      more.hidden = !next;
      all.hidden = !session.is_admin || !total;
      const failed = data.boxes.filter((box) => !box.ok).map((box) => `${box.node}: ${box.error}.`);
      const places = [...new Set(data.boxes.filter((box) => box.letters).map((box) => box.dead_letter_topic))];
      const found = total ? `The topic has ${many(total, "dead letter")}, in ${places.join(", ")}${channel ? `; these are of ${channel}` : ""}.` : "No dead letters. A message becomes one when it was tried as often as the setting max_attempts says.";
      setText(note, [found, ...failed].join(" "));
    } catch (error) {
      setText(note, error.message);
    }
  }

  all.addEventListener("click", async () => {
    const which = [contains.value && `that contain “${contains.value}”`, channel && `of the channel ${channel}`].filter(Boolean).join(" ");
    const text = [which ? `Of ${many(total, "dead letter")}, those ${which} will be published to ${topic} again.` : `${many(total, "message")} will be published to ${topic} again.`, "The letters stay where they are; one that was published again before is not published twice."];
    const body = { all: true, contains: contains.value || undefined, channel: channel || undefined };
    if (await confirm({ title: "Publish all again?", text, verb: "Publish", name: topic })) again(body, "all again");
  });
  some.addEventListener("click", () => again({ letters: [...chosen.values()] }, "some again"));
  more.addEventListener("click", () => look(next));
  const element = h("div", {}, h("form", { class: "tools", onsubmit: (event) => { event.preventDefault(); look(); } }, contains, h("button", { type: "submit" }, "Look"), all, some), note, list, more);
  element.start = () => { look(); };
  return element;
}
