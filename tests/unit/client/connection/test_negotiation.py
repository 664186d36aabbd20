"""What a client asks of a connection, and what it believes of the answer."""

import json

import pytest

from pumpline.client.connection.negotiation import Negotiated, identify_body
from pumpline.client.settings import Settings


def test_where_a_client_is_is_said_only_if_it_is_known() -> None:
    here = Settings(topology_region="eu", topology_zone="eu-1")
    said = json.loads(identify_body(here))
    assert (said["topology_region"], said["topology_zone"]) == ("eu", "eu-1")
    assert "topology_zone" not in json.loads(identify_body(Settings()))


@pytest.mark.parametrize("name", ["max_rdy_count", "msg_timeout", "max_msg_timeout"])
@pytest.mark.parametrize("value", [-1, 1 << 60, 10**400])
def test_numbers_that_make_no_sense_are_not_believed(name: str, value: int) -> None:
    with pytest.raises(ValueError, match="makes no sense"):
        Negotiated.parse(json.dumps({name: value}).encode())
