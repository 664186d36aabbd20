// Elements, made of text alone: nothing that a client of nsqd says can become markup.

/** An element. `attributes` may have class, on… handlers, and any attribute; null and false leave it out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else if (name === "checked") element.checked = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/** Set the text if it is another one: what stays the same is not painted again. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  append(element, children);
  return element;
}

const BASE = document.querySelector('meta[name="base"]').content;

/** The address of a page or an API route, below the base path. */
export function address(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== "" && value !== null && value !== undefined && value !== false) query.set(name, value);
  }
  const text = query.toString();
  return BASE + path + (text ? "?" + text : "");
}

/** nsqadmin puts it into the page, so that nothing is painted before in the other one. */
export function keepTheme(theme) {
  document.cookie = `nsqadmin-theme=${theme}; path=${BASE || "/"}; max-age=31536000; samesite=lax`;
}

/** Put these into the query of this page's address, so that it can be sent to others; empty ones leave it. */
export function keepInAddress(values) {
  const url = new URL(location.href);
  for (const [name, value] of Object.entries(values)) {
    if (value) url.searchParams.set(name, value);
    else url.searchParams.delete(name);
  }
  history.replaceState(history.state, "", url);
}

/** The path of this page without the base path, in parts. */
export function here() {
  const path = location.pathname.startsWith(BASE) ? location.pathname.slice(BASE.length) : location.pathname;
  return path.split("/").filter(Boolean).map(decodeURIComponent);
}

export const paths = {
  topic: (topic) => address(`/topics/${encodeURIComponent(topic)}`),
  channel: (topic, channel) => address(`/topics/${encodeURIComponent(topic)}/${encodeURIComponent(channel)}`),
  node: (node) => address(`/nodes/${encodeURIComponent(node)}`),
  message: (topic, node, offset) => address(`/topics/${encodeURIComponent(topic)}`, { node, offset: String(offset) }),
};

export function link(href, ...children) {
  return h("a", { href }, children);
}
