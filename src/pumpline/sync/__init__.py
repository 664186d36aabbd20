"""The client without asyncio: for scripts, threads, and workers of Spark or a web server.

    with Producer("127.0.0.1:4150") as producer:
        producer.publish("orders", b"...")

    for message in Consumer("orders", "billing", nsqd="127.0.0.1:4150").messages(idle_s=5):
        ...
        message.finish()

The clients of `pumpline.client` do the work, on an event loop in a thread that all objects of a
process share; a call waits in its own thread for the result. So nsqd's heartbeats are answered
while the caller is busy with a message. A call costs two switches of threads, about 0.1 ms;
`publish_many` and iterations pay that once for many messages.

Threads may share the objects: messages that they publish at the same time are sent as one MPUB.
Processes may fork: the child connects again when it first uses an object. Messages that the parent
has sent or received stay with the parent.
"""

from pumpline.client.consuming.message import Batch, Message
from pumpline.sync.consumer import Consumer
from pumpline.sync.producer import Producer
from pumpline.sync.topic_group import TopicGroup

__all__ = ["Batch", "Consumer", "Message", "Producer", "TopicGroup"]
