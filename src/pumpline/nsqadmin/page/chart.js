// Lines over time, as SVG. Where nothing is known there is a gap, never an invented line.

import { h, replace, setText, svg } from "./dom.js";
import { clock } from "./format.js";

/** The `d` of a path through the values that are known, in a box of that size. */
export function path(values, width, height, top) {
  const step = values.length > 1 ? width / (values.length - 1) : width;
  let drawing = false;
  let text = "";
  values.forEach((value, index) => {
    if (value === null || value === undefined) {
      drawing = false;
      return;
    }
    const x = (index * step).toFixed(1);
    const y = (height - (height * value) / (top || 1)).toFixed(1);
    const alone = !drawing && (values[index + 1] === null || values[index + 1] === undefined);
    text += `${drawing ? "L" : "M"}${x} ${y}${alone ? "h0.01" : ""}`;
    drawing = true;
  });
  return text;
}

const SPARK_VALUES = 60; // ten minutes

/** The values at the end of a list of that length, so that a minute has the same width in all lines. */
const padded = (values, length) => [...new Array(Math.max(length - values.length, 0)).fill(null), ...values];

const largest = (values) => values.reduce((most, value) => Math.max(most, value ?? 0), 0);

/** A small line without axes; `update(values)` draws another. */
export function spark(values, { width = 80, height = 18, label = "" } = {}) {
  const line = svg("path", { class: "line" });
  const element = svg(
    "svg",
    { class: "spark", viewBox: `0 -1 ${width} ${height + 2}`, width, height, role: "img", "aria-label": label },
    line,
  );
  element.update = (news) => {
    const values = padded(news ?? [], SPARK_VALUES);
    line.setAttribute("d", path(values, width, height, largest(values)));
  };
  element.update(values);
  return element;
}

/** The next round number at or above a value: 1, 2 or 5 times a power of ten. */
export function roundUp(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  for (const factor of [1, 2, 5, 10]) if (factor * power >= value) return factor * power;
  return 10 * power;
}

const TIMES_S = [2, 10, 20, 60, 120, 600, 1200, 3600, 7200, 14_400, 43_200, 86_400];

/** The same for a time in milliseconds, in units that people use. */
export function roundUpTime(milliseconds) {
  const seconds = milliseconds / 1000;
  return 1000 * (TIMES_S.find((each) => each >= seconds) ?? 86_400 * roundUp(seconds / 86_400));
}

const WIDTH = 720;
const HEIGHT = 96;

/**
 * A chart with one scale, which `round` ends. `lines` are {id, label, show}, `show` writes a value. `update({step_ms, end_ms, series})` draws.
 * Moving over it tells the values of all lines at that moment.
 */
export function chart(title, lines, { round = roundUp } = {}) {
  const drawn = lines.map((line, index) => svg("path", { class: `line line-${index}` }));
  const middle = svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT / 2, y2: HEIGHT / 2 });
  const base = svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT, y2: HEIGHT });
  const cursor = svg("line", { class: "cursor", y1: 0, y2: HEIGHT, visibility: "hidden" });
  const picture = svg(
    "svg",
    { class: "plot", viewBox: `0 -2 ${WIDTH} ${HEIGHT + 4}`, preserveAspectRatio: "none", role: "img" },
    middle, base, ...drawn, cursor,
  );
  const topLabel = h("span", { class: "axis-top" });
  const midLabel = h("span", { class: "axis-mid" });
  const begin = h("span");
  const end = h("span");
  const readings = lines.map(() => h("b"));
  const legend = lines.map((line, index) => h("span", { class: `legend line-${index}` }, h("i"), line.label, " ", readings[index]));
  const when = h("span", { class: "faint" });
  let data = null;

  function read(index) {
    lines.forEach((line, number) => {
      const values = data.series[line.id] ?? [];
      const at = values.length - data.length + index;
      setText(readings[number], line.show(values[at] ?? null));
    });
    const moment = data.end_ms - (data.length - 1 - index) * data.step_ms;
    setText(when, index === data.length - 1 ? "now" : clock(moment));
  }

  function onMove(event) {
    if (!data?.length) return;
    const box = picture.getBoundingClientRect();
    const part = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
    const index = Math.round(part * (data.length - 1));
    const x = (index / Math.max(data.length - 1, 1)) * WIDTH;
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    cursor.setAttribute("visibility", "visible");
    read(index);
  }

  function onLeave() {
    cursor.setAttribute("visibility", "hidden");
    if (data?.length) read(data.length - 1);
  }

  picture.addEventListener("pointermove", onMove);
  picture.addEventListener("pointerleave", onLeave);
  const element = h(
    "figure", { class: "chart" },
    h("figcaption", {}, h("span", { class: "chart-title" }, title), when, h("span", { class: "legends" }, legend)),
    h("div", { class: "plot-box" }, topLabel, midLabel, picture),
    h("div", { class: "times faint" }, begin, end),
  );
  element.update = (news) => {
    const lists = lines.map((line) => news.series[line.id] ?? []);
    const known = Math.max(0, ...lists.map((values) => values.length));
    data = { ...news, length: known && Math.max(known, SPARK_VALUES) };
    const top = round(Math.max(2, ...lists.map(largest)));
    lists.forEach((values, index) => drawn[index].setAttribute("d", path(padded(values, data.length), WIDTH, HEIGHT, top)));
    setText(topLabel, lines[0].show(top).replace(/\.0$/, ""));
    setText(midLabel, lines[0].show(top / 2).replace(/\.0$/, ""));
    setText(begin, data.length ? clock(news.end_ms - (data.length - 1) * news.step_ms) : "");
    setText(end, data.length ? clock(news.end_ms) : "no figures yet");
    picture.setAttribute("aria-label", `${title}, the last hour`);
    if (data.length && cursor.getAttribute("visibility") === "hidden") read(data.length - 1);
  };
  replace(when, "");
  return element;
}
