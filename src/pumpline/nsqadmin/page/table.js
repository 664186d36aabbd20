// Tables: real ones, with rows that keep their place while their numbers change.

import { live } from "./api.js";
import { h, replace, setText } from "./dom.js";
import { brief, count } from "./format.js";

const headClass = (column) => [column.number ? "number" : "", column.class ?? ""].join(" ").trim() || null;

/** Columns have fixed widths, so that a number that grows moves none of them; the name takes what is left. */
function widths(columns, picks) {
  return h("colgroup", {}, picks && h("col", { class: "col-pick" }), columns.map((column) => h("col", { class: [column.width ?? (column.number ? "col-number" : ""), column.class ?? ""].join(" ").trim() || null })));
}

const NOTHING = new Set(["0", "–", ""]);

/** A number is never cut: one that its column has no room for is shortened, and the title has all of it. */
function fitted(column, text) {
  const room = column.width === "col-small" ? 7 : 9;
  const isLong = column.number && text.length > room && /^[\d,]+$/.test(text);
  return isLong ? brief(Number(text.replaceAll(",", ""))) : text;
}

/** What is nothing is grey: what is something stands out. */
function setFigure(cell, column, text) {
  const shown = fitted(column, text);
  setText(cell, shown);
  if (shown !== text) cell.title = text;
  else cell.removeAttribute("title");
  if (column.number) cell.classList.toggle("nothing", NOTHING.has(text));
}

/** A cell shows a column's `show(row)`: a text, or an element that has `update(row)`. */
function makeCell(column, row) {
  const cell = h(column.head ? "th" : "td", {
    class: headClass(column),
    scope: column.head ? "row" : null,
    "data-label": column.label,
  });
  const shown = column.show(row);
  if (shown instanceof Node) cell.append(shown);
  else setFigure(cell, column, String(shown ?? ""));
  return cell;
}

function updateCell(cell, column, row) {
  const child = cell.firstElementChild;
  if (child?.update) {
    child.update(row);
    return;
  }
  const shown = column.show(row);
  if (!(shown instanceof Node)) setFigure(cell, column, String(shown ?? ""));
  else if (!child?.isEqualNode(shown) || cell.querySelector("button")) cell.replaceChildren(shown); // else a link keeps its focus
}

/** A table of rows that are given: `update(rows)` shows others. */
export function plainTable(caption, columns, { empty = "None." } = {}) {
  const body = h("tbody");
  const cells = new Map();
  const table = h(
    "table", {},
    h("caption", { class: "hidden" }, caption),
    widths(columns, false),
    h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col", class: headClass(column), title: column.title ?? null }, title(column))))),
    body,
  );
  body.addEventListener("keydown", onArrow);
  const nothing = h("p", { class: "faint empty", hidden: true }, empty);
  const element = h("div", { class: "table" }, table, nothing);
  element.update = (rows) => {
    const keys = rows.map((row) => row.key);
    const same = keys.length === cells.size && keys.every((key, index) => [...cells.keys()][index] === key);
    if (!same) {
      cells.clear();
      replace(body, rows.map((row) => {
        const made = columns.map((column) => makeCell(column, row));
        cells.set(row.key, made);
        return h("tr", {}, made);
      }));
    } else {
      rows.forEach((row) => cells.get(row.key).forEach((cell, index) => updateCell(cell, columns[index], row)));
    }
    nothing.hidden = rows.length > 0;
    table.hidden = rows.length === 0;
  };
  return element;
}

/** What a column is called; one of buttons has a name that only screen readers tell. */
const title = (column) => (column.label ? column.label : h("span", { class: "hidden" }, "actions"));

const PAGE_ROWS = 50;
const SORT_AGAIN_MS = 10_000;

/** Arrows go from row to row. */
function onArrow(event) {
  const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const line = event.target.closest("tr");
  const next = move === 1 ? line?.nextElementSibling : line?.previousElementSibling;
  if (!move || !next) return;
  event.preventDefault();
  (next.querySelector("a") ?? next).focus();
}

/**
 * A live table of the API. Search, sort, filter and page are in the address, under `prefix`.
 * `columns`: {id, label, show, number, head, sort: false if it cannot be sorted by}. `bulk(rows)` gives what can be done with the
 * selected. `searchable` may be "many": if there is more than one page. Rows stay where they are while somebody points at them; else those that are sorted by a figure are sorted again.
 */
export function liveTable({ view, caption, columns, parameters = {}, sort, filters = [], searchable = true, bulk = null, empty = "None.", prefix = "" }) {
  const query = new URLSearchParams(location.search);
  const named = (name) => prefix + name;
  const state = {
    search: query.get(named("search")) ?? "",
    sort: query.get(named("sort")) ?? sort,
    filter: new Set((query.get(named("filter")) ?? "").split(",").filter(Boolean)),
    offset: Number(query.get(named("offset")) ?? 0) || 0,
  };
  const selected = new Map();
  const cells = new Map();
  let stop = null;
  let shownRows = [];
  let total = 0;
  let sortedAt = 0;

  const search = h("input", { type: "search", placeholder: "Search", "aria-label": `Search ${caption}`, value: state.search, class: "search" });
  const chips = filters.map((filter) => {
    const chip = h("button", { type: "button", class: "chip", "aria-pressed": String(state.filter.has(filter.id)) }, filter.label);
    chip.addEventListener("click", () => {
      if (!state.filter.delete(filter.id)) state.filter.add(filter.id);
      chip.setAttribute("aria-pressed", String(state.filter.has(filter.id)));
      state.offset = 0;
      reopen("push");
    });
    return chip;
  });
  const acts = h("span", { class: "bulk" });
  const heads = columns.map((column) => sortHead(column));
  const body = h("tbody");
  const all = h("input", { type: "checkbox", "aria-label": "select all rows of this page" });
  all.addEventListener("change", () => {
    const is = all.checked;
    shownRows.forEach((row) => pick(row, is));
  });
  const table = h(
    "table", {},
    h("caption", { class: "hidden" }, caption), widths(columns, bulk),
    h("thead", {}, h("tr", {}, bulk && h("th", { class: "pick", scope: "col" }, all), heads)),
    body,
  );
  const nothing = h("p", { class: "faint empty", hidden: true }, empty);
  const range = h("span", { class: "faint range" });
  const news = h("button", { type: "button", hidden: true, onclick: () => reopen() }, "Show new rows");
  const back = h("button", { type: "button", hidden: true, onclick: () => turn(-PAGE_ROWS) }, "Previous");
  const on = h("button", { type: "button", hidden: true, onclick: () => turn(PAGE_ROWS) }, "Next");
  const pages = h("div", { class: "pages" }, range, back, on, news, acts);
  const tools = (searchable || filters.length > 0) && h("div", { class: "tools", hidden: searchable === "many" }, searchable && search, chips);
  const element = h(
    "div", { class: "table" },
    tools,
    table, nothing, pages,
  );

  function sortHead(column) {
    if (column.sort === false) return h("th", { scope: "col", class: headClass(column), title: column.title ?? null }, title(column));
    const id = column.id;
    const button = h("button", { type: "button", class: "sort", title: column.title ?? null }, column.label);
    button.addEventListener("click", () => {
      const first = column.number ? `-${id}` : id;
      const second = column.number ? id : `-${id}`;
      state.sort = state.sort === first ? second : first;
      state.offset = 0;
      reopen("push");
    });
    return h("th", { scope: "col", class: headClass(column), "data-sort": id }, button);
  }

  function showSort() {
    for (const head of heads) {
      const id = head.getAttribute("data-sort");
      if (!id) continue;
      const order = state.sort === id ? "ascending" : state.sort === `-${id}` ? "descending" : "none";
      head.setAttribute("aria-sort", order);
    }
  }

  /** What is shown is in the address; `push` if Back is to lead to what was shown before. */
  function keep(push) {
    const address = new URL(location.href);
    const values = { search: state.search, sort: state.sort === sort ? "" : state.sort, filter: [...state.filter].join(","), offset: state.offset || "" };
    for (const [name, value] of Object.entries(values)) {
      if (value) address.searchParams.set(named(name), value);
      else address.searchParams.delete(named(name));
    }
    if (push && address.href !== location.href) history.pushState(null, "", address);
    else history.replaceState(history.state, "", address);
  }

  function turn(rows) {
    state.offset = Math.max(0, state.offset + rows);
    reopen("push");
  }

  function pick(row, is) {
    if (is) selected.set(row.key, row);
    else selected.delete(row.key);
    const box = cells.get(row.key)?.box;
    if (box) box.checked = is;
    showActs();
  }

  function pickCell(row) {
    const box = h("input", { type: "checkbox", "aria-label": `select ${row.key}` });
    box.addEventListener("change", () => pick(row, box.checked));
    return box;
  }

  function showActs() {
    all.checked = selected.size > 0 && selected.size === shownRows.length;
    all.indeterminate = selected.size > 0 && selected.size < shownRows.length;
    replace(acts, selected.size ? [h("span", { class: "faint" }, `${count(selected.size)} selected `), bulk([...selected.values()])] : []);
  }

  function draw(data) {
    shownRows = data.rows;
    total = data.total;
    news.hidden = true;
    cells.clear();
    replace(body, data.rows.map((row) => {
      const made = columns.map((column) => makeCell(column, row));
      const box = bulk && pickCell(row);
      const line = h("tr", { tabindex: "-1" }, box && h("td", { class: "pick" }, box), made);
      cells.set(row.key, { line, made, box });
      return line;
    }));
    showRange(data);
  }

  function showRange(data) {
    const last = Math.min(data.offset + data.rows.length, data.total);
    setText(range, data.total ? `${count(data.offset + 1)}–${count(last)} of ${count(data.total)}` : "");
    back.hidden = on.hidden = data.total <= PAGE_ROWS;
    back.disabled = data.offset === 0;
    on.disabled = last >= data.total;
    if (searchable === "many" && (data.total > PAGE_ROWS || state.search)) tools.hidden = false;
    nothing.hidden = data.total > 0;
    table.hidden = pages.hidden = data.total === 0;
    setText(nothing, data.message || (state.search || state.filter.size ? "Nothing matches." : empty));
  }

  const isLookedAt = () => selected.size > 0 || element.matches(":hover") || element.contains(document.activeElement);

  /** There are more rows, or fewer. They move only while nobody points at them or has selected some; the first ones move none. */
  function onOtherRows() {
    if (shownRows.length > 0 && isLookedAt()) news.hidden = false;
    else reopen();
  }

  /** A table by a figure is soon in another order; it is not one while somebody looks at it. */
  function sortAgain() {
    const byFigure = columns.some((column) => column.number && state.sort.replace("-", "") === column.id);
    if (byFigure && Date.now() - sortedAt > SORT_AGAIN_MS && !isLookedAt()) reopen();
  }

  function reopen(push = "") {
    sortedAt = Date.now();
    keep(push);
    showSort();
    stop?.();
    selected.clear();
    if (bulk) showActs();
    stop = live(view, { ...parameters, search: state.search, sort: state.sort, filter: [...state.filter].join(","), offset: state.offset, limit: PAGE_ROWS }, {
      full: draw,
      delta: (data, changed) => {
        for (const row of data.rows) {
          const known = changed.has(row.key) && cells.get(row.key);
          if (!known) continue;
          if (row.gone) known.line.classList.add("gone");
          else known.made.forEach((cell, index) => updateCell(cell, columns[index], row));
        }
        showRange(data);
        if (data.total !== total || data.rows.some((row) => row.gone)) onOtherRows(); // one may have come for one that went
        else sortAgain();
      },
      error: (error) => { replace(body); setText(nothing, error.message); nothing.hidden = false; table.hidden = true; },
    });
  }

  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      state.search = search.value.trim();
      state.offset = 0;
      reopen();
    }, 150);
  });
  body.addEventListener("keydown", onArrow);
  // Once nobody looks any more, what has waited is shown. The element that gets the focus has it only after the event.
  const onAway = () => setTimeout(() => { if (!news.hidden && element.isConnected && !isLookedAt()) reopen(); });
  element.addEventListener("mouseleave", onAway);
  element.addEventListener("focusout", onAway);
  element.start = () => { reopen(); return () => stop?.(); };
  return element;
}
