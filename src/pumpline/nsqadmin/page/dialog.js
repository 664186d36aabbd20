// Dialogs and short messages. Nothing is destroyed by a slip: what is lost is told, and the name typed.

import { h, replace } from "./dom.js";
import { many } from "./format.js";

const GO_NSQD = "a Go nsqd cannot do this"; // known before, so no failure while others can
let number = 0;

/** A modal dialog; `build(close)` gives its content, the promise what `close` was called with (null for Escape). */
export function modal(title, build) {
  return new Promise((resolve) => {
    number += 1;
    const id = `dialog-${number}`;
    const element = h("dialog", { "aria-labelledby": id });
    const close = (value) => {
      element.close();
      resolve(value);
    };
    element.append(h("h2", { id }, title), ...[build(close)].flat());
    element.addEventListener("cancel", (event) => { event.preventDefault(); close(null); });
    element.addEventListener("close", () => element.remove());
    document.body.append(element);
    element.showModal();
  });
}

/** Ask before something is destroyed; with `name`, that must be typed. */
export function confirm({ title, text, verb, name = "" }) {
  return modal(title, (close) => {
    const act = h("button", { type: "submit", class: "danger", disabled: Boolean(name) }, verb);
    const typed = name && h("input", { type: "text", autocomplete: "off", spellcheck: "false", "aria-label": `Type ${name} to go on`, autofocus: true });
    if (typed) typed.addEventListener("input", () => { act.disabled = typed.value !== name; });
    return h(
      "form", { method: "dialog", onsubmit: (event) => { event.preventDefault(); close(true); } },
      [text].flat().filter(Boolean).map((line) => h("p", {}, line)),
      name && h("p", {}, h("label", {}, "Type ", h("code", {}, name), " to go on", h("br"), typed)),
      h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => close(false) }, "Cancel"), act),
    );
  });
}

/** A short message; with `undo`, a button for it. Errors stay until they are closed. */
export function toast(text, { undo = null, isError = false } = {}) {
  const element = h(
    "div", { class: isError ? "toast error" : "toast", role: isError ? "alert" : null },
    h("span", {}, text),
    undo && h("button", { type: "button", onclick: () => { element.remove(); undo(); } }, "Undo"),
    h("button", { type: "button", class: "plain", "aria-label": "Close", onclick: () => element.remove() }, "×"),
  );
  document.getElementById("toasts").append(element);
  if (!isError) setTimeout(() => element.remove(), 8000);
}

/** What came of a change on several nodes: in short if all is well, else node by node. */
export function tellResults(verb, answer) {
  const results = answer.results ?? [{ nodes: answer.nodes ?? [] }];
  const all = results.flatMap((result) => result.nodes.filter((node) => !node.ok).map((node) => ({ ...node, topic: result.topic, channel: result.channel })));
  const lacking = all.filter((node) => answer.ok && node.error === GO_NSQD);
  const failed = all.filter((node) => !lacking.includes(node));
  if (lacking.length) toast(`Not on ${lacking.map((node) => node.node).join(", ")}: ${GO_NSQD}.`);
  if (!failed.length) return;
  const body = h("ul", {}, failed.map((node) => h("li", {}, h("b", {}, node.node ?? node.lookupd), " ", [node.topic, node.channel].filter(Boolean).join(" › "), ": ", node.error)));
  modal(`${verb}: ${many(failed.length, "failure")}`, (close) => [
    body,
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => close(null), autofocus: true }, "Close")),
  ]);
}

export function fail(error) {
  if (error.body?.results || error.body?.nodes) tellResults("Failed", error.body);
  else toast(error.message, { isError: true });
}

export function note(element, text) {
  replace(element, text);
}
