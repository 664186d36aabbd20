"""A message is published when nsqd says so, and by no other answer."""

import pytest

from pumpline.tools.token_publisher import TokenMessage, TokenPublisher
from tests.kit.tools.fake_nsqd import fake_nsqd

MESSAGE = TokenMessage("shop:1", b"order")


@pytest.mark.parametrize(
    ("status", "refused"), [(200, []), (204, [MESSAGE]), (301, [MESSAGE]), (413, [MESSAGE])]
)
async def test_only_200_says_that_it_is_there(status: int, refused: list[TokenMessage]) -> None:
    """A redirection of a proxy was taken for success, and the message was lost."""
    with fake_nsqd() as server:
        server.status = status
        publisher = TokenPublisher(server.http_address)
        assert await publisher.publish("orders", [MESSAGE]) == refused
        await publisher.close()
