"""Names of nsq_to_file's files: the format's placeholders, and which files on disk are ours.

Pure: host, process id and time are arguments. Names are relative to the working directory and may
have directories in them.
"""

import re
from dataclasses import dataclass
from datetime import datetime

REV = "<REV>"
DATETIME = "<DATETIME>"

_STRFTIME = {
    "B": "%B",
    "b": "%b",
    "m": "%m",
    "A": "%A",
    "a": "%a",
    "d": "%d",
    "H": "%H",
    "I": "%I",
    "M": "%M",
    "S": "%S",
    "Y": "%Y",
    "y": "%y",
    "p": "%p",
    "Z": "%Z",
    "z": "%z",
    "%": "%%",
}


def strftime(text: str, now: datetime) -> str:
    """The conversions that NSQ's tool knows; others stay as they are."""

    def convert(match: re.Match[str]) -> str:
        known = _STRFTIME.get(match[1])
        return match[0] if known is None else now.strftime(known)

    return re.sub(r"%(.)", convert, text, flags=re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    name: str
    process_id: int

    def identifier(self, wanted: str) -> str:
        short = self.name.partition(".")[0]
        if not wanted:
            return short
        return wanted.replace("<SHORT_HOST>", short).replace("<HOSTNAME>", self.name)


class Filenames:
    """The names of one topic's files."""

    def __init__(
        self,
        topic: str,
        *,
        format: str,
        datetime_format: str,
        host_identifier: str,
        host: Host,
        has_revisions: bool,
        suffix: str,
    ) -> None:
        """`suffix` is that of the compression, `.gz`; it is added unless the format has it."""
        format = format if has_revisions else format.replace(REV, "")
        format = format.replace("<TOPIC>", topic)
        format = format.replace("<HOST>", host.identifier(host_identifier))
        self._datetime_format = datetime_format
        if suffix and not format.endswith(suffix):
            format += suffix
        self._ours = _pattern(format)
        self._format = format.replace("<PID>", str(host.process_id))

    def at(self, now: datetime) -> str:
        """The name for this time, with <REV> still in it."""
        return self._format.replace(DATETIME, strftime(self._datetime_format, now))

    def is_ours(self, name: str) -> bool:
        """Whether a file on disk may be of this topic, of any time, revision and process."""
        return self._ours.fullmatch(name) is not None


def with_revision(name: str, revision: int) -> str:
    return name.replace(REV, f"-{revision:06d}")


def _pattern(format: str) -> re.Pattern[str]:
    places = {REV: r"-\d{6,}", "<PID>": r"\d+", DATETIME: ".*"}
    parts = re.split(r"(<REV>|<PID>|<DATETIME>)", format)
    return re.compile("".join(places.get(part, re.escape(part)) for part in parts), re.DOTALL)
