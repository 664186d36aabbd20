"""The flags of nsq_to_file, and what is wrong with their values.

Names, defaults and error texts are NSQ's; `zstd`, `zstd_level` and `framing` are ours. NSQ takes
a bad pattern, filename or interval in silence and then does nothing; these are errors here.
"""

import re
from dataclasses import dataclass
from typing import ClassVar

from pumpline.core.text.durations import NS_PER_MIN, NS_PER_S
from pumpline.core.text.flags import BOOL, DURATION, INT, STRING, STRINGS, option, parse_log_level
from pumpline.tools.sources import SourceOptions

FRAMINGS = ("line", "length")


@dataclass(slots=True, kw_only=True)
class ToFileOptions(SourceOptions):
    program: ClassVar[str] = "nsq_to_file"

    channel: str = option(STRING, "nsq_to_file", "channel to consume")
    topic: list[str] = option(STRINGS, list, "topic to write (repeats)")
    topic_pattern: str = option(
        STRING, "", "write the topics that this regular expression matches anywhere in their name"
    )
    topic_refresh_ns: int = option(
        DURATION, NS_PER_MIN, "how often nsqlookupds are asked for topics of --topic-pattern"
    )
    output_dir: str = option(STRING, "/tmp", "directory of the files")
    work_dir: str = option(
        STRING, "", "directory of files being written; they move to --output-dir when complete"
    )
    filename_format: str = option(
        STRING,
        "<TOPIC>.<HOST><REV>.<DATETIME>.log",
        "name of a file; <TOPIC>, <HOST>, <PID>, <DATETIME> and <REV> are replaced. "
        "<REV> counts up while a name is taken",
    )
    datetime_format: str = option(STRING, "%Y-%m-%d_%H", "<DATETIME> as strftime writes it")
    host_identifier: str = option(
        STRING, "", "<HOST>; <SHORT_HOST> and <HOSTNAME> in it are replaced"
    )
    gzip: bool = option(BOOL, False, "compress with gzip")
    gzip_level: int = option(INT, 6, "1 (fast) to 9 (small)")
    zstd: bool = option(BOOL, False, "compress with zstd (not in NSQ)")
    zstd_level: int = option(INT, 3, "1 (fast) to 22 (small) (not in NSQ)")
    framing: str = option(
        STRING,
        "line",
        "line: a body and a newline; length: 4 bytes of its size, big-endian, and a body "
        "(not in NSQ)",
    )
    skip_empty_files: bool = option(BOOL, False, "open no file before there is a message for it")
    rotate_size: int = option(INT, 0, "begin a new file after so many bytes, before compression")
    rotate_interval_ns: int = option(DURATION, 0, "begin a new file after so long")
    sync_interval_ns: int = option(
        DURATION, 30 * NS_PER_S, "longest time until messages are safe on the disk and finished"
    )
    http_client_connect_timeout_ns: int = option(
        DURATION, 2 * NS_PER_S, "time to connect to an nsqlookupd"
    )
    http_client_request_timeout_ns: int = option(
        DURATION, 5 * NS_PER_S, "time for an answer of an nsqlookupd"
    )
    log_level: str = option(STRING, "info", "least level that is logged: debug, info, warn, error")
    log_prefix: str = option(STRING, "[nsq_to_file] ", "text before every log line")

    @property
    def working_dir(self) -> str:
        return self.work_dir or self.output_dir

    @property
    def is_compressed(self) -> bool:
        return self.gzip or self.zstd

    @property
    def has_revisions(self) -> bool:
        return bool(
            self.is_compressed
            or self.rotate_size > 0
            or self.rotate_interval_ns > 0
            or self.working_dir != self.output_dir
        )

    def fault(self) -> str:
        return self._fault_of_nsq() or self._fault_of_ours()

    def _fault_of_nsq(self) -> str:
        if not self.channel:
            return "--channel is required"
        if self.http_client_connect_timeout_ns <= 0:
            return "--http-client-connect-timeout should be positive"
        if self.http_client_request_timeout_ns <= 0:
            return "--http-client-request-timeout should be positive"
        if fault := self.source_fault():
            return f"{fault}." if fault.endswith("required") else fault
        if not 1 <= self.gzip_level <= 9:
            return f"invalid --gzip-level value ({self.gzip_level}), should be 1-9"
        if not self.topic and not self.topic_pattern:
            return "--topic or --topic-pattern required"
        if not self.topic and not self.lookupd_http_address:
            return "--lookupd-http-address must be specified when no --topic specified"
        try:
            parse_log_level(self.log_level)
        except ValueError:
            return "--log-level is invalid"
        return ""

    def _fault_of_ours(self) -> str:
        """What NSQ does not notice, or notices only in its log."""
        if self.has_revisions and "<REV>" not in self.filename_format:
            return "missing <REV> in --filename-format when gzip, rotation, or work dir enabled"
        try:
            re.compile(self.topic_pattern)
        except re.error as error:
            return f"--topic-pattern is invalid: {error}"
        if self.gzip and self.zstd:
            return "use --gzip or --zstd not both"
        if not 1 <= self.zstd_level <= 22:
            return f"invalid --zstd-level value ({self.zstd_level}), should be 1-22"
        if self.framing not in FRAMINGS:
            return f"--framing should be {' or '.join(FRAMINGS)}"
        if self.max_in_flight < 1:
            return "--max-in-flight should be positive"
        for name, value in {
            "sync-interval": self.sync_interval_ns,
            "topic-refresh": self.topic_refresh_ns,
        }.items():
            if value <= 0:
                return f"--{name} should be positive"
        if self.rotate_size < 0 or self.rotate_interval_ns < 0:
            return "--rotate-size and --rotate-interval should not be negative"
        return ""
