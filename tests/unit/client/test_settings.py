"""Settings that make no sense are refused, and secrets are not shown."""

import math

import pytest

from pumpline.client.settings import Settings


def test_a_secret_is_not_shown() -> None:
    assert "hush" not in repr(Settings(auth_secret="hush"))


@pytest.mark.parametrize(
    "words",
    [
        {"connect_timeout_s": 0},
        {"write_timeout_s": -1},
        {"frame_bytes_max": 0},
        {"msg_timeout_s": -1},
        {"msg_timeout_s": math.inf},
        {"output_buffer_timeout_s": math.nan},
        {"read_timeout_s": math.nan},
        {"read_timeout_s": -1, "heartbeat_interval_s": -1},
        {"heartbeat_interval_s": 0},
        {"heartbeat_interval_s": 90},
        {"sample_rate": 100},
        {"deflate_level": 0},
        {"snappy": True, "deflate": True},
        {"requeue_delay_s": -1},
        {"poll_interval_s": 0},
        {"poll_jitter": 1.5},
        {"backoff_max_s": -1},
        {"stop_timeout_s": math.inf},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(words: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(words))):
        Settings(**words)  # type: ignore[arg-type]
