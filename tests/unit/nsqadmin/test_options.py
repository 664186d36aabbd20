"""nsqadmin's options: NSQ's names, defaults and config keys."""

import pytest

from pumpline.core.text import flags
from pumpline.core.text.durations import NS_PER_S
from pumpline.core.text.flags import LogLevel
from pumpline.nsqadmin.options import FLAGS, NsqadminOptions

NSQ_FLAGS = set(
    "config version verbose log-level log-prefix http-address base-path dev-static-dir "
    "graphite-url proxy-graphite statsd-prefix statsd-counter-format statsd-gauge-format "
    "statsd-interval "
    "notification-http-endpoint http-client-connect-timeout http-client-request-timeout "
    "http-client-tls-insecure-skip-verify http-client-tls-root-ca-file http-client-tls-cert "
    "http-client-tls-key allow-config-from-cidr acl-http-header lookupd-http-address "
    "nsqd-http-address admin-user".split()
)
NSQD = {"nsqd-http-address": ["127.0.0.1:4151"]}


def test_all_of_nsqs_flags_are_there_and_two_more() -> None:
    ours = {"nsqd-token-file", "log-format", "http-host"}
    assert {flag.name for flag in FLAGS} == NSQ_FLAGS | ours


def test_defaults_are_nsqs() -> None:
    options = NsqadminOptions.from_sources(NSQD, {})
    assert (options.http_address, options.base_path) == ("0.0.0.0:4171", "/")
    assert (options.log_prefix, options.log_level) == ("[nsqadmin] ", LogLevel.INFO)
    assert options.statsd_prefix == "nsq.%s"
    assert options.statsd_counter_format == "stats.counters.%s.count"
    assert options.statsd_gauge_format == "stats.gauges.%s"
    assert options.statsd_interval_ns == 60 * NS_PER_S
    assert options.http_client_connect_timeout_ns == 2 * NS_PER_S
    assert options.http_client_request_timeout_ns == 5 * NS_PER_S
    assert options.allow_config_from_cidr == "127.0.0.1/8"
    assert options.acl_http_header == "X-Forwarded-User"
    assert (options.admin_user, options.lookupd_http_address) == ([], [])


def test_flags_go_over_the_config_file() -> None:
    given = flags.parse(FLAGS, ["-admin-user", "ann", "--admin-user=bob"]).values
    config = {
        "admin_users": ["eve"],
        "nsqd_http_addresses": ["127.0.0.1:1"],
        "statsd_interval": "30s",
        "proxy_graphite": True,
    }
    options = NsqadminOptions.from_sources(given, config)
    assert options.admin_user == ["ann", "bob"]
    assert options.nsqd_http_address == ["127.0.0.1:1"]
    assert (options.statsd_interval_ns, options.proxy_graphite) == (30 * NS_PER_S, True)


@pytest.mark.parametrize(
    ("given", "path", "root"),
    [
        ("", "/", ""),
        ("/", "/", ""),
        ("a", "/a", "/a"),
        ("/a/", "/a", "/a"),
        ("//a//../b/.", "/b", "/b"),
    ],
)
def test_base_paths_are_cleaned(given: str, path: str, root: str) -> None:
    options = NsqadminOptions.from_sources({**NSQD, "base-path": given}, {})
    assert (options.base_path, options.root) == (path, root)
