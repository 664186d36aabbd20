// Numbers, times and sizes as people read them. null is what nobody knows: a dash.

const NUMBER = new Intl.NumberFormat("en-US");
const ONE_DIGIT = new Intl.NumberFormat("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const UNKNOWN = "–";

const unknown = (value) => value === null || value === undefined || Number.isNaN(value);

export function count(value) {
  return unknown(value) ? UNKNOWN : NUMBER.format(value);
}

/** A large number where there is no room for all of it: 20.0 M. */
export function brief(value) {
  const [size, unit] = value < 1e9 ? [1e6, "M"] : value < 1e12 ? [1e9, "G"] : [1e12, "T"];
  return `${ONE_DIGIT.format(value / size)} ${unit}`;
}

export function rate(value) {
  if (unknown(value)) return UNKNOWN;
  if (value === 0) return "0";
  if (value < 0.05) return "<0.1";
  return value < 10 ? ONE_DIGIT.format(value) : NUMBER.format(Math.round(value));
}

export function bytes(value) {
  if (unknown(value)) return UNKNOWN;
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  let size = value;
  while (size >= 999.5 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${unit && size < 10 ? ONE_DIGIT.format(size) : NUMBER.format(Math.round(size))} ${units[unit]}`;
}

/** A duration in its largest unit: <1 s, 12 s, 3 min, 2 h, 5 d. */
export function lag(milliseconds) {
  if (unknown(milliseconds)) return UNKNOWN;
  const seconds = milliseconds / 1000;
  if (seconds < 1) return "<1 s";
  if (seconds < 100) return `${Math.round(seconds)} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  if (seconds < 48 * 3600) return `${Math.round(seconds / 3600)} h`;
  return `${NUMBER.format(Math.round(seconds / 86400))} d`;
}

const pad = (value, width = 2) => String(value).padStart(width, "0");

export function clock(milliseconds, { fraction = false } = {}) {
  if (unknown(milliseconds)) return UNKNOWN;
  const date = new Date(milliseconds);
  const text = `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
  return fraction ? `${text}.${pad(date.getMilliseconds(), 3)}` : text;
}

export function moment(milliseconds, options = {}) {
  if (unknown(milliseconds) || milliseconds <= 0) return UNKNOWN;
  const date = new Date(milliseconds);
  const today = new Date();
  const isToday = date.toDateString() === today.toDateString();
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  return isToday ? clock(milliseconds, options) : `${day} ${clock(milliseconds, options)}`;
}

export function ago(milliseconds, now = Date.now()) {
  return unknown(milliseconds) || milliseconds <= 0 ? UNKNOWN : lag(Math.max(now - milliseconds, 0));
}

export function many(value, one, several = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : several}`;
}

/** The value of a datetime-local input, in local time. */
export function localInput(milliseconds) {
  const date = new Date(milliseconds);
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  return `${day}T${clock(milliseconds)}`;
}
