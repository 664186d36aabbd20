"""The client without asyncio: for scripts, threads, and workers of Spark or a web server.

    with Producer("127.0.0.1:4150") as producer:
        producer.publish("orders", b"...")

    for message in Consumer("orders", "billing", nsqd="127.0.0.1:4150").messages(idle_s=5):
        ...
        message.finish()

The clients of `pumpline.client` do the work, on an event loop in a thread that all objects of a
process share (`loop_thread`); a call waits in its own thread for the result. A second client on
blocking sockets would repeat batching, failover, RDY and backoff, and could not answer nsqd's
heartbeats while the caller is busy with a message; nsqd drops a consumer that does not. The price
is two switches of threads a call, some 0.1 ms, which `publish_many` and messages that come in
batches do not pay for each message.

Objects may be shared by threads: what several publish at the same time goes out as one MPUB. They
survive a fork: the child, which has no such thread, drops its copies of the sockets and connects
again when it first uses them. What the parent has sent or received stays the parent's.
"""

from pumpline.client.consuming.message import Batch, Message
from pumpline.sync.consumer import Consumer, ConsumerArguments
from pumpline.sync.producer import Producer, ProducerOptions

__all__ = ["Batch", "Consumer", "ConsumerArguments", "Message", "Producer", "ProducerOptions"]
