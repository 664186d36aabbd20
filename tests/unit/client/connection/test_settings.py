"""What a client asks of a connection, and what it believes of the answer."""

import json
import math

import pytest

from pumpline.client.connection.settings import Negotiated, Settings


def test_where_a_client_is_is_said_only_if_it_is_known() -> None:
    here = Settings(topology_region="eu", topology_zone="eu-1")
    said = json.loads(here.identify_body())
    assert (said["topology_region"], said["topology_zone"]) == ("eu", "eu-1")
    assert "topology_zone" not in json.loads(Settings().identify_body())


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
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(words: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(words))):
        Settings(**words)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["max_rdy_count", "msg_timeout", "max_msg_timeout"])
@pytest.mark.parametrize("value", [-1, 1 << 60, 10**400])
def test_numbers_that_make_no_sense_are_not_believed(name: str, value: int) -> None:
    with pytest.raises(ValueError, match="makes no sense"):
        Negotiated.parse(json.dumps({name: value}).encode())
