// The frame of the page: the bar at the top, and which view an address is.
//
// It imports every module, also those that only others need: a browser then fetches all of them at once. It would find out
// about them one import after another.

import "./actions.js";
import "./chart.js";
import "./columns.js";
import "./dialog.js";
import "./format.js";
import "./messages.js";
import "./rewind.js";
import "./table.js";
import "./topic-parts.js";
import { onConnection } from "./api.js";
import { address, h, here, keepTheme, replace } from "./dom.js";
import { channelView } from "./view-channel.js";
import { counterView } from "./view-counter.js";
import { lookupView } from "./view-lookup.js";
import { messageView } from "./view-message.js";
import { nodeView, nodesView } from "./view-nodes.js";
import { overviewView } from "./view-overview.js";
import { topicView } from "./view-topic.js";
import { topicsView } from "./view-topics.js";

const main = document.getElementById("main");
const banner = document.getElementById("banner");
const session = JSON.parse(document.querySelector('meta[name="session"]').content);
let leave = null;

function pick(parts, query) {
  const [place, first, second] = parts;
  if (!place) return () => overviewView(session);
  if (place === "topics" && second) return () => channelView(session, first, second);
  if (place === "topics" && first && query.has("offset")) return () => messageView(session, first, query.get("node"), query.get("offset"));
  if (place === "topics" && first) return () => topicView(session, first);
  if (place === "topics") return () => topicsView(session);
  if (place === "nodes" && first) return () => nodeView(session, first);
  if (place === "nodes") return () => nodesView(session);
  if (place === "lookup") return () => lookupView(session);
  if (place === "counter") return () => counterView(session);
  return () => ({ title: "Not here", element: h("p", {}, "There is no such page.") });
}

/** Show the view of this address: {title, element, start()}, where `start` returns how to end it. */
function show() {
  leave?.();
  leave = null;
  const parts = here();
  const view = pick(parts, new URLSearchParams(location.search))();
  document.title = view.title === "Overview" ? "nsqadmin" : `${view.title} – nsqadmin`;
  replace(main, view.element);
  leave = view.start?.() ?? null;
  for (const each of document.querySelectorAll("#top nav a")) {
    if ((each.dataset.place || "") === (parts[0] ?? "")) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
}

export function go(href) {
  history.pushState(null, "", href);
  show();
  window.scrollTo(0, 0);
  main.focus({ preventScroll: true }); // where the next Tab, or a screen reader, goes on
}

/** The bar is in index.html, so that it is there before anything else; here it begins to work. */
function bar() {
  const search = document.getElementById("find");
  search.form.addEventListener("submit", (event) => {
    event.preventDefault();
    search.blur();
    go(address("/topics", { search: search.value.trim() }));
  });
  document.getElementById("theme").addEventListener("click", turnTheme);
  if (session.admin_users) document.getElementById("who").textContent = `${session.user || "nobody"}${session.is_admin ? "" : ", may only look"}`;
}

function turnTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  keepTheme(next);
}

document.addEventListener("click", (event) => {
  const anchor = event.target.closest?.("a[href]");
  const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
  if (!anchor || !plain || anchor.target || anchor.hasAttribute("download") || anchor.origin !== location.origin) return;
  if (anchor.getAttribute("href").startsWith("#") || anchor.pathname.includes("/api/")) return;
  event.preventDefault();
  go(anchor.href);
});

document.addEventListener("keydown", (event) => {
  const inField = event.target.closest?.("input, textarea, select, dialog");
  if (event.key === "/" && !inField) {
    event.preventDefault();
    document.getElementById("find").focus();
  }
  if (event.key === "ArrowDown" && !inField && (event.target === document.body || event.target === main)) {
    event.preventDefault();
    document.querySelector("#main tbody tr:not([hidden]) th a, #main tbody a")?.focus();
  }
  if (event.key === "Escape" && event.target.id === "find") event.target.blur();
});

window.addEventListener("popstate", show);
onConnection((connected) => {
  banner.hidden = connected;
  banner.textContent = connected ? "" : "nsqadmin does not answer; trying again. What is shown may be old.";
});

bar();
show();
