"""An address that is another port than the one that is wanted is told as that. Needs no Spark."""

import pytest

from pyspark_nsq.errors import NsqError
from pyspark_nsq.nodes.nodes import Nodes
from pyspark_nsq.options import parse_read
from tests.kit.daemons import Nsqd, Nsqlookupd
from tests.spark.conftest import QUICK


def error_for(**addresses: str) -> str:
    nodes = Nodes(parse_read({"subscribe": "t", **QUICK, **addresses}, streaming=False))
    try:
        with pytest.raises(NsqError) as caught:
            nodes.survey()
    finally:
        nodes.close()
    return str(caught.value)


def test_a_tcp_port_where_an_http_port_is_wanted_is_told(
    nsqd: Nsqd, nsqlookupd: Nsqlookupd
) -> None:
    for where in ("nsqd", "lookupd"):
        assert error_for(**{where: nsqd.tcp_address}) == (
            f"http://{nsqd.tcp_address}: this is the TCP port of an nsqd: use its HTTP port, often "
            "4151"
        )
        assert error_for(**{where: nsqlookupd.tcp_address}) == (
            f"http://{nsqlookupd.tcp_address}: this is the TCP port of an nsqlookupd: use its HTTP "
            "port, often 4161"
        )


def test_one_daemon_s_http_port_where_the_other_s_is_wanted_is_told(
    nsqd: Nsqd, nsqlookupd: Nsqlookupd
) -> None:
    assert "is no HTTP port of an nsqlookupd" in error_for(lookupd=nsqd.http_address)
    assert "this is an nsqlookupd: use 'lookupd'" in error_for(nsqd=nsqlookupd.http_address)
