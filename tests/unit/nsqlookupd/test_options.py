"""nsqlookupd's options: NSQ's names, defaults and config keys."""

import pytest

from pumpline.core.text import flags
from pumpline.core.text.durations import NS_PER_MIN, NS_PER_S
from pumpline.core.text.flags import LogLevel, OptionsError
from pumpline.nsqlookupd.options import FLAGS, NsqlookupdOptions

NSQ_FLAGS = {
    "config",
    "version",
    "verbose",
    "log-level",
    "log-prefix",
    "tcp-address",
    "http-address",
    "broadcast-address",
    "inactive-producer-timeout",
    "tombstone-lifetime",
}


def test_all_of_nsqs_flags_are_there_and_ours() -> None:
    ours = {"log-format", "http-host", "max-connections", "data-path", "lost-node-timeout"}
    assert {flag.name for flag in FLAGS} == NSQ_FLAGS | ours


def test_defaults_are_nsqs() -> None:
    options = NsqlookupdOptions.from_sources({}, {})
    assert (options.tcp_address, options.http_address) == ("0.0.0.0:4160", "0.0.0.0:4161")
    assert options.inactive_producer_timeout_ns == 5 * NS_PER_MIN
    assert options.tombstone_lifetime_ns == 45 * NS_PER_S
    assert (options.log_prefix, options.log_level) == ("[nsqlookupd] ", LogLevel.INFO)
    assert options.max_connections == 0


def test_flags_go_over_the_config_file() -> None:
    given = flags.parse(FLAGS, ["-tombstone-lifetime", "1s", "--max-connections=7"]).values
    options = NsqlookupdOptions.from_sources(
        given,
        {"tombstone_lifetime": "9s", "inactive_producer_timeout": "1m30s", "log_level": "warn"},
    )
    assert options.tombstone_lifetime_ns == NS_PER_S
    assert options.inactive_producer_timeout_ns == 90 * NS_PER_S
    assert (options.max_connections, options.log_level) == (7, LogLevel.WARN)


@pytest.mark.parametrize(
    "key", ["tombstone_lifetime", "inactive_producer_timeout", "max_connections"]
)
def test_negative_limits_are_refused(key: str) -> None:
    value = -1 if key == "max_connections" else "-1s"
    with pytest.raises(OptionsError) as caught:
        NsqlookupdOptions.from_sources({}, {key: value})
    flag = key.replace("_", "-")
    assert str(caught.value) == (
        f"failed to instantiate nsqlookupd - --{flag} must not be negative"
    )


def test_a_bad_value_in_the_config_file_is_refused() -> None:
    with pytest.raises(OptionsError):
        NsqlookupdOptions.from_sources({}, {"log_level": "xx"})
