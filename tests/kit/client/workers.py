"""Worker processes of a server, forked after their clients were made, or spawned: a program.

    python -m tests.kit.client.workers fork|spawn topic directory address...

Two workers publish and one consumes, all with `pumpline.sync`. Each writes what it was told to a
file of its own: `C` confirmed, `D` doubtful, `N` not sent, `H` handled, and the body.
"""

import multiprocessing
import sys
from pathlib import Path

from pumpline.client import NotSentError, PublishError, RefusedError, Settings
from pumpline.sync import Consumer, Producer
from tests.kit.client.consuming import CHANNEL

MESSAGES = 30
IDLE_S = 1.0


def new_producer(addresses: list[str]) -> Producer:
    return Producer(
        addresses, timeout_s=1, confirm_timeout_s=0.4, retry_unconfirmed=False, spread=True
    )


def new_consumer(addresses: list[str], topic: str) -> Consumer:
    settings = Settings(requeue_delay_s=0, backoff_max_s=0)
    return Consumer(
        topic, CHANNEL, nsqd=addresses, max_in_flight=5, max_attempts=0, settings=settings
    )


def publish(producer: Producer, topic: str, name: str, path: Path) -> None:
    with path.open("a", buffering=1) as told:
        for number in range(MESSAGES):
            body = f"{name}-{number}"
            try:
                producer.publish(topic, body.encode())
                told.write(f"C {body}\n")
            except (NotSentError, RefusedError):
                told.write(f"N {body}\n")
            except (PublishError, ConnectionError) as error:
                kind = "D" if isinstance(error, PublishError) else "N"
                told.write(f"{kind} {body}\n")


def consume(consumer: Consumer, path: Path) -> None:
    with path.open("a", buffering=1) as told:
        for message in consumer.messages(idle_s=IDLE_S):
            if message.finish():
                told.write(f"H {message.body.decode()}\n")


def spawned(role: int, topic: str, directory: Path, addresses: list[str]) -> None:
    path = directory / f"worker{role}"
    if role == 2:
        consume(new_consumer(addresses, topic), path)
    else:
        publish(new_producer(addresses), topic, f"w{role}", path)


def main() -> None:
    kind, topic, directory, *addresses = sys.argv[1:]
    where = Path(directory)
    context = multiprocessing.get_context(kind)
    if kind == "spawn":
        works = [(spawned, (role, topic, where, addresses)) for role in range(3)]
    else:
        producer, consumer = new_producer(addresses), new_consumer(addresses, topic)
        publish(producer, topic, "parent", where / "parent")  # its loop and sockets are in use
        consumer.start()
        works = [
            (publish, (producer, topic, "w0", where / "worker0")),
            (publish, (producer, topic, "w1", where / "worker1")),
            (consume, (consumer, where / "worker2")),
        ]
    processes = [context.Process(target=target, args=args) for target, args in works]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0, process.exitcode


if __name__ == "__main__":
    main()
