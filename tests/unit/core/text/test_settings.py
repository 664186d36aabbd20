"""A topic's settings: what they may be, and what is said otherwise."""

import pytest

from pumpline.core.text.settings import NO_SETTINGS, SettingsError, TopicSettings

HOUR_NS = 3600 * 1_000_000_000


def test_all_settings_as_written_and_as_shown() -> None:
    written = {
        "retention_time": "72h0m0s",
        "retention_bytes": 0,
        "message_ttl": "1h30m0s",
        "max_attempts": 5,
        "dead_letter_topic": "dead",
        "dead_letter_form": "body",
        "max_depth": 1000,
        "max_bytes": 1 << 30,
        "when_full": "drop-oldest",
    }
    settings = NO_SETTINGS.changed(written)
    assert settings.shown() == written
    assert (settings.retention_time_ns, settings.message_ttl_ns) == (72 * HOUR_NS, HOUR_NS * 3 // 2)
    settings.check("t")


def test_changes_leave_the_rest_and_null_takes_away() -> None:
    settings = NO_SETTINGS.changed({"message_ttl": "1s", "max_depth": 5})
    assert settings.changed({"max_depth": None}) == NO_SETTINGS.changed({"message_ttl": "1s"})
    assert settings.changed({}) == settings
    assert settings.changed({"max_depth": None, "message_ttl": None}) == NO_SETTINGS


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("ttl", "1s", "there is no setting 'ttl'"),
        ("retention_time_ns", 1, "there is no setting 'retention_time_ns'"),
        ("message_ttl", 5, "message_ttl must be a duration of 1ms or more"),
        ("message_ttl", "", "must be a duration"),
        ("message_ttl", "5", "must be a duration"),
        ("message_ttl", "-5s", "must be a duration"),
        ("message_ttl", "1us", "of 1ms or more"),
        ("message_ttl", "9" * 5000 + "s", "must be a duration"),
        ("message_ttl", ["1s"], "must be a duration"),
        ("retention_time", "soon", "retention_time must be a duration of 0s or more"),
        ("retention_bytes", -1, "retention_bytes must be a whole number from 0 to"),
        ("max_attempts", 0, "max_attempts must be a whole number from 1 to 65535"),
        ("max_attempts", 65536, "from 1 to 65535"),
        ("max_attempts", True, "from 1 to 65535"),
        ("max_attempts", 1.0, "from 1 to 65535"),
        ("max_attempts", "5", "from 1 to 65535"),
        ("max_depth", 1 << 63, "max_depth must be a whole number"),
        ("max_bytes", 0, "max_bytes must be a whole number from 1"),
        ("when_full", "block", "when_full must be reject or drop-oldest"),
        ("when_full", ["reject"], "when_full must be"),
        ("dead_letter_form", "xml", "dead_letter_form must be json or body"),
        ("dead_letter_topic", "a b", "must be the name of a topic"),
        ("dead_letter_topic", "a#ephemeral", "that is not ephemeral"),
        ("dead_letter_topic", 7, "must be the name of a topic"),
    ],
)
def test_what_is_wrong_is_said(name: str, value: object, fault: str) -> None:
    with pytest.raises(SettingsError, match=fault):
        NO_SETTINGS.changed({name: value})


@pytest.mark.parametrize(
    ("topic", "settings", "fault"),
    [
        ("t", TopicSettings(dead_letter_topic="d"), "dead_letter_topic needs max_attempts"),
        ("t", TopicSettings(dead_letter_form="body"), "dead_letter_form needs max_attempts"),
        ("t", TopicSettings(when_full="reject"), "when_full needs max_depth or max_bytes"),
        ("t", TopicSettings(max_attempts=1, dead_letter_topic="t"), "must be another topic"),
        ("t.dlq", TopicSettings(max_attempts=1), "dead letters have no dead letters"),
        ("x" * 61, TopicSettings(max_attempts=1), "too long for a topic: say dead_letter_topic"),
    ],
)
def test_settings_that_do_not_go_together(topic: str, settings: TopicSettings, fault: str) -> None:
    with pytest.raises(SettingsError, match=fault):
        settings.check(topic)


def test_where_dead_letters_go() -> None:
    assert TopicSettings(max_attempts=1).dead_letters_of("t") == "t.dlq"
    assert TopicSettings(max_attempts=1, dead_letter_topic="d").dead_letters_of("t") == "d"
    TopicSettings(max_attempts=1).check("x" * 60)
    TopicSettings(message_ttl_ns=1).check("t.dlq")
