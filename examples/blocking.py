"""Publish and consume lines of text without asyncio.

python examples/blocking.py 127.0.0.1:4150
"""

import sys

from pumpline.sync import Consumer, Producer

NSQD = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:4150"
LINES = ["the quick brown fox", "jumps over", "the lazy dog"]

with Producer(NSQD) as producer:
    producer.publish_many("lines", (line.encode() for line in LINES))

words = 0
consumer = Consumer("lines", "count", nsqd=NSQD, max_in_flight=10)
for message in consumer.messages(idle_s=0.5):  # until none has come for half a second
    words += len(message.body.split())
    message.finish()
print(f"{words} words")
