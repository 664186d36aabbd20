"""Points in time as users write them: nanoseconds since 1970, or RFC 3339. Pure."""

import re
from datetime import UTC, datetime, timedelta, timezone

from pumpline.core.text.durations import NS_PER_S

_NANOSECONDS = re.compile(r"[0-9]{1,19}", re.ASCII)
_RFC_3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?(?:[Zz]|([+-])(\d\d):(\d\d))",
    re.ASCII,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NS_END = 1 << 63


def parse_time(text: str) -> int:
    """Nanoseconds since 1970; ValueError if `text` is neither form."""
    if _NANOSECONDS.fullmatch(text):
        time_ns = int(text)
    else:
        match = _RFC_3339.fullmatch(text)
        if match is None:
            raise ValueError("neither nanoseconds nor RFC 3339")
        day, clock, fraction, sign, hours, minutes = match.groups()
        zone = UTC
        if sign:
            ahead = timedelta(hours=int(hours), minutes=int(minutes))
            zone = timezone(ahead if sign == "+" else -ahead)
        whole = datetime.fromisoformat(f"{day}T{clock}").replace(tzinfo=zone) - _EPOCH
        seconds = whole.days * 86_400 + whole.seconds
        time_ns = seconds * NS_PER_S + int((fraction or "").ljust(9, "0"))
    if not 0 <= time_ns < _NS_END:
        raise ValueError("out of range")
    return time_ns
