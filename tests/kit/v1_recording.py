"""What an nsqd and an nsqlookupd, both NSQ's 1.3.0, said to each other: nsqd's bytes and the reply.

The nsqd made a topic with two channels, deleted one, took a message for a topic whose channel only
the nsqlookupd knew, deleted the first topic, and sent a heartbeat. Ports and host are put in later.
"""

from typing import NamedTuple

OK = b"\x00\x00\x00\x02OK"


class Exchange(NamedTuple):
    said: bytes
    answered: bytes


def identity(*, tcp_port: int, http_port: int, hostname: str, address: str = "127.0.0.1") -> bytes:
    """As either side introduces itself."""
    body = (
        b'{"broadcast_address":"%b","hostname":"%b","http_port":%d,"tcp_port":%d,"version":"1.3.0"}'
        % (address.encode(), hostname.encode(), http_port, tcp_port)
    )
    return len(body).to_bytes(4) + body


def beginning(nsqd: bytes, nsqlookupd: bytes) -> Exchange:
    """Given their identities."""
    return Exchange(b"  V1IDENTIFY\n" + nsqd, nsqlookupd)


EXCHANGES = (
    Exchange(b"REGISTER orders\n", OK),
    Exchange(b"REGISTER orders audit\n", OK),
    Exchange(b"REGISTER orders tail#ephemeral\n", OK),
    Exchange(b"UNREGISTER orders audit\n", OK),
    Exchange(b"REGISTER fresh\n", OK),
    Exchange(b"REGISTER fresh known\n", OK),
    Exchange(b"UNREGISTER orders\n", OK),
    Exchange(b"UNREGISTER orders tail#ephemeral\n", OK),
    Exchange(b"PING\n", OK),
)
REFUSAL = b"\x00\x00\x00\x1eE_INVALID client must IDENTIFY"
