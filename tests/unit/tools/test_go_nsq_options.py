"""go-nsq's option names: each is read, bounded, and reaches the setting it is meant for."""

import ssl

import pytest

from pumpline.tools.go_nsq_options import (
    OPTIONS,
    Given,
    attempts_max,
    client_settings,
    parse_option,
)


def given(*texts: str) -> list[Given]:
    return [option for text in texts for option in parse_option(text)]


@pytest.mark.parametrize(
    ("option", "setting", "value"),
    [
        ("client_id,me", "client_id", "me"),
        ("hostname,here", "hostname", "here"),
        ("user_agent,x/1", "user_agent", "x/1"),
        ("dial_timeout,3s", "connect_timeout_s", 3.0),
        ("read_timeout,90s", "read_timeout_s", 90.0),
        ("write_timeout,2s", "write_timeout_s", 2.0),
        ("heartbeat_interval,5s", "heartbeat_interval_s", 5.0),
        ("msg_timeout,1m", "msg_timeout_s", 60.0),
        ("sample_rate,10", "sample_rate", 10),
        ("output_buffer_size,100", "output_buffer_size", 100),
        ("output_buffer_timeout,10ms", "output_buffer_timeout_s", 0.01),
        ("deflate", "deflate", True),
        ("deflate_level,9", "deflate_level", 9),
        ("snappy,true", "snappy", True),
        ("auth-secret,s", "auth_secret", "s"),
    ],
)
def test_settings_of_connections(option: str, setting: str, value: object) -> None:
    assert getattr(client_settings(given(option), user_agent="tool"), setting) == value


@pytest.mark.parametrize(
    ("option", "name", "value"),
    [
        ("lookupd_poll_interval,10s", "poll_interval_s", 10.0),
        ("lookupd_poll_jitter,0.5", "poll_jitter", 0.5),
        ("max_requeue_delay,1m", "requeue_delay_max_s", 60.0),
        ("default_requeue_delay,0", "requeue_delay_s", 0.0),
        ("max_backoff_duration,0", "backoff_max_s", 0.0),
        ("backoff_multiplier,2s", "backoff_multiplier_s", 2.0),
        ("rdy_redistribute_interval,100ms", "redistribute_interval_s", 0.1),
    ],
)
def test_options_of_the_consumer(option: str, name: str, value: float) -> None:
    assert getattr(client_settings(given(option), user_agent="tool"), name) == value


def test_attempts_are_the_tools_unless_they_are_given() -> None:
    assert attempts_max([], 5) == 5
    assert attempts_max(given("max_attempts,0"), 5) == 0


def test_tls_is_used_only_if_it_is_asked_for() -> None:
    assert client_settings(given("tls_insecure_skip_verify"), user_agent="x").tls is False
    asked = given("tls_v1", "tls_insecure_skip_verify", "tls_min_version,tls1.3")
    context = client_settings(asked, user_agent="x").tls
    assert isinstance(context, ssl.SSLContext)
    assert context.verify_mode is ssl.CERT_NONE
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    verifying = client_settings(given("tls_v1"), user_agent="x").tls
    assert isinstance(verifying, ssl.SSLContext)
    assert verifying.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("option", "fault"),
    [
        ("nope,1", "invalid option nope"),
        ("read_timeout,1ms", "invalid read_timeout ! 1ms < 100ms"),
        ("read_timeout,6m", "invalid read_timeout ! 6m0s > 5m0s"),
        ("deflate_level,0", "invalid deflate_level ! 0 < 1"),
        ("max_attempts,99999", "invalid max_attempts ! 99999 > 65535"),
    ],
)
def test_what_go_nsq_refuses_is_refused(option: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        parse_option(option)


def test_every_name_of_the_documentation_is_known() -> None:
    names = """dial_timeout read_timeout write_timeout lookupd_poll_interval lookupd_poll_jitter
        max_requeue_delay default_requeue_delay max_backoff_duration backoff_multiplier max_attempts
        low_rdy_idle_timeout rdy_redistribute_interval client_id hostname user_agent
        heartbeat_interval sample_rate tls_v1 tls_root_ca_file tls_insecure_skip_verify tls_cert
        tls_key tls_min_version deflate deflate_level snappy output_buffer_size
        output_buffer_timeout max_in_flight msg_timeout auth_secret"""
    assert set(names.split()) <= OPTIONS.keys()
