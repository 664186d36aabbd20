"""docs/from-kafka.md: our programs run, and those of Kafka's client are Python."""

from pumpline.testing import LocalNsqd
from tests.kit.programs import end, namespace_of, other_programs, programs, running, with_ports

PUBLISH, CONSUME, REWIND = programs("from-kafka.md")


def test_orders_are_published_consumed_and_consumed_again(nsqd: LocalNsqd) -> None:
    namespace_of(PUBLISH, nsqd)
    assert len(nsqd.messages("orders")) == 993
    with running("-c", with_ports(CONSUME, nsqd)) as worker:
        nsqd.wait_until_done("orders", "billing", timeout_s=60)
        namespace_of(REWIND, nsqd)
        nsqd.wait_until_done("orders", "billing", timeout_s=60)
        assert end(worker).count("billed 7\n") == 2


def test_programs_of_kafka_are_python() -> None:
    for program in other_programs("from-kafka.md"):
        compile(program, "docs/from-kafka.md", "exec")
    assert len(other_programs("from-kafka.md")) == 2
