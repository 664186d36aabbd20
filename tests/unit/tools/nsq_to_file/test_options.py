"""What nsq_to_file says to flags that it cannot use: NSQ's words, and ours where it is silent."""

import pytest

from pumpline.tools.nsq_to_file.options import ToFileOptions

NSQD = "--nsqd-tcp-address=127.0.0.1:1"
LOOKUPD = "--lookupd-http-address=127.0.0.1:1"
REV = "missing <REV> in --filename-format when gzip, rotation, or work dir enabled"


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (f"{NSQD} --topic=t", ""),
        ("--topic=t", "--nsqd-tcp-address or --lookupd-http-address required."),
        (NSQD, "--topic or --topic-pattern required"),
        (LOOKUPD, "--topic or --topic-pattern required"),
        (
            f"{NSQD} --topic-pattern=x",
            "--lookupd-http-address must be specified when no --topic specified",
        ),
        (f"{NSQD} --topic=t --gzip-level=0", "invalid --gzip-level value (0), should be 1-9"),
        (f"{NSQD} --topic=t --gzip-level=10", "invalid --gzip-level value (10), should be 1-9"),
        (f"{NSQD} --topic=t --log-level=foo", "--log-level is invalid"),
        (f"{NSQD} --topic=t --channel=", "--channel is required"),
        (
            f"{NSQD} --topic=t --http-client-connect-timeout=0",
            "--http-client-connect-timeout should be positive",
        ),
        # NSQ's tool logs these, or not even that, and goes on without doing anything.
        (f"{NSQD} --topic=t --gzip --filename-format=x", REV),
        (f"{NSQD} --topic=t --rotate-size=1 --filename-format=x", REV),
        (f"{NSQD} --topic=t --work-dir=w --filename-format=x", REV),
        (f"{NSQD} --topic=t --filename-format=x", ""),
        (f"{NSQD} --topic=t --sync-interval=0", "--sync-interval should be positive"),
        (f"{NSQD} --topic=t --gzip --zstd", "use --gzip or --zstd not both"),
        (f"{NSQD} --topic=t --framing=json", "--framing should be line or length"),
        (f"{NSQD} --topic=t --max-in-flight=0", "--max-in-flight should be positive"),
    ],
)
def test_the_first_fault_is_told(flags: str, fault: str) -> None:
    assert ToFileOptions.parse(flags.split()).fault() == fault


def test_a_pattern_that_is_none_is_told() -> None:
    fault = ToFileOptions.parse([LOOKUPD, "--topic-pattern=("]).fault()
    assert fault.startswith("--topic-pattern is invalid")
