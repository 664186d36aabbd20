"""Durations as Go writes them (`1h30m`, `250ms`), held as integer nanoseconds.

Knows the grammar of Go's `time.ParseDuration` and the format of `Duration.String`, including their
limits (signed 64 bits) and error texts. Pure: it reads no clock.
"""

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
NS_PER_MIN = 60 * NS_PER_S
NS_PER_HOUR = 60 * NS_PER_MIN

_UNIT_NS = {
    "ns": 1,
    "us": NS_PER_US,
    "\u00b5s": NS_PER_US,  # micro sign
    "\u03bcs": NS_PER_US,  # Greek mu
    "ms": NS_PER_MS,
    "s": NS_PER_S,
    "m": NS_PER_MIN,
    "h": NS_PER_HOUR,
}
_MAGNITUDE_MAX = 1 << 63  # of a negative duration; a positive one has one less
_DIGITS = "0123456789"


def parse_duration(text: str) -> int:
    """Nanoseconds in `text`, or ValueError in Go's words."""
    invalid = f'time: invalid duration "{text}"'
    negative = text.startswith("-")
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return 0
    if not rest:
        raise ValueError(invalid)
    total_ns = 0
    while rest:
        whole, rest = _split_leading(rest, _DIGITS)
        fraction = ""
        if rest.startswith("."):
            fraction, rest = _split_leading(rest[1:], _DIGITS)
        # More than 19 digits overflow 63 bits in any unit, and Python is slow to convert many.
        if not (whole or fraction) or len(whole.lstrip("0")) > 19:
            raise ValueError(invalid)
        unit, rest = _split_unit(rest)
        if not unit:
            raise ValueError(f'time: missing unit in duration "{text}"')
        if unit not in _UNIT_NS:
            raise ValueError(f'time: unknown unit "{unit}" in duration "{text}"')
        total_ns += int(whole or "0") * _UNIT_NS[unit] + _fraction_ns(fraction, _UNIT_NS[unit])
        if total_ns > _MAGNITUDE_MAX:
            raise ValueError(invalid)
    if negative:
        return -total_ns
    if total_ns == _MAGNITUDE_MAX:
        raise ValueError(invalid)
    return total_ns


def format_duration(duration_ns: int) -> str:
    """`duration_ns` as Go prints it: `0s`, `1.5ms`, `1m0s`, `1h0m0.25s`."""
    sign = "-" if duration_ns < 0 else ""
    magnitude_ns = abs(duration_ns)
    if magnitude_ns == 0:
        return "0s"
    if magnitude_ns < NS_PER_US:
        return f"{sign}{magnitude_ns}ns"
    if magnitude_ns < NS_PER_MS:
        return f"{sign}{_decimal(magnitude_ns, NS_PER_US)}\u00b5s"
    if magnitude_ns < NS_PER_S:
        return f"{sign}{_decimal(magnitude_ns, NS_PER_MS)}ms"
    minutes, second_ns = divmod(magnitude_ns, NS_PER_MIN)
    hours, minutes = divmod(minutes, 60)
    text = f"{_decimal(second_ns, NS_PER_S)}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    if hours:
        text = f"{hours}h{text}"
    return sign + text


def _split_leading(text: str, alphabet: str) -> tuple[str, str]:
    rest = text.lstrip(alphabet)
    return text[: len(text) - len(rest)], rest


def _split_unit(text: str) -> tuple[str, str]:
    end = next((at for at, char in enumerate(text) if char == "." or char in _DIGITS), len(text))
    return text[:end], text[end:]


def _fraction_ns(digits: str, unit_ns: int) -> int:
    """`0.<digits>` of a unit, cut to whole nanoseconds."""
    # No unit needs more: an hour is under 10^13 ns, so further digits are below one nanosecond.
    kept = digits[:18]
    scale: int = 10 ** len(kept)
    return int(kept or "0") * unit_ns // scale


def _decimal(value: int, unit: int) -> str:
    """`value / unit` without trailing zeros; `unit` is a power of ten."""
    whole, part = divmod(value, unit)
    if not part:
        return str(whole)
    width = len(str(unit)) - 1
    return f"{whole}.{part:0{width}d}".rstrip("0")
