"""One request over HTTP, with the client that the tools and Spark use."""

from pumpline.client.http_connection import HttpAnswer, HttpClientConnection, split_url


def ask_once(
    method: str,
    url: str,
    *,
    timeout_s: float,
    bytes_max: int,
    body: bytes | None = None,
) -> HttpAnswer:
    """One request on a connection of its own."""
    origin, target = split_url(url)
    connection = HttpClientConnection(origin, timeout_s=timeout_s)
    try:
        headers = {"Connection": "close"}
        return connection.ask(method, target, bytes_max=bytes_max, headers=headers, body=body)
    finally:
        connection.close()
