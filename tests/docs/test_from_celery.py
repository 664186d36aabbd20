"""docs/from-celery.md: our programs run, and Celery's are Python."""

from pumpline.testing import LocalNsqd
from tests.kit.programs import end, namespace_of, other_programs, programs, running, with_ports

WORKER, CALL = programs("from-celery.md")


def test_orders_are_published_and_billed(nsqd: LocalNsqd) -> None:
    namespace_of(CALL, nsqd)
    with running("-c", with_ports(WORKER, nsqd)) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "charged 990 for order 7\n"
        nsqd.publish("orders", b'{"number": 9, "amount": -1}')
        assert "a credit is not billed" in worker.stdout.readline()
        assert end(worker) == ""
    assert nsqd.stats("orders", "billing")["deferred_count"] == 1  # order 8, in a minute


def test_programs_of_celery_are_python() -> None:
    for program in other_programs("from-celery.md"):
        compile(program, "docs/from-celery.md", "exec")
    assert len(other_programs("from-celery.md")) == 2
