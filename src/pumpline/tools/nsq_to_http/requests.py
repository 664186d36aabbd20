"""One message, one request: what is sent, what its answer means, and what the message is told.

| answer                                            | message                                     |
|---------------------------------------------------|---------------------------------------------|
| 2xx to a POST, 200 to a GET                       | finished                                    |
| any other, or none                                | requeued with a backoff, as NSQ's tool does |
| ... and --retry-status, which does not have it    | dropped: logged and finished                |
| ... and --retry-after, and a Retry-After          | requeued for that long                      |
"""

import random
import time
from urllib.parse import quote_plus

from yarl import URL

from pumpline import NSQ_VERSION
from pumpline.client import Message
from pumpline.core.text.durations import NS_PER_S
from pumpline.tools.host_pool import HostPool
from pumpline.tools.nsq_to_http.kept_connections import KeptConnections
from pumpline.tools.nsq_to_http.options import ToHttpOptions, statuses
from pumpline.tools.status_lines import StatusLines
from pumpline.tools.tool import ToolFailure, log

RETRY_AFTER_MAX_S = 3600.0
OK = 200


class Requests:
    """Concurrent calls of `send` are requests side by side. ToolFailure if a URL is wrong."""

    def __init__(self, options: ToHttpOptions) -> None:
        self._is_post = bool(options.post)
        self._sample = options.sample
        self._retried = statuses(options.retry_status)
        self._retries_all = not options.retry_status
        self._heeds_retry_after = options.retry_after
        self._pool = HostPool(options.urls, options.mode, now=time.monotonic, random=random.random)
        self._status = StatusLines(options.urls, options.status_every)
        headers = {
            "User-Agent": f"nsq_to_http v{NSQ_VERSION}",
            "Accept-Encoding": "gzip",
            **({"Content-Type": options.content_type} if self._is_post else {}),
            **options.headers,
        }
        self._client = KeptConnections(
            headers,
            requests_max=options.n,
            connect_timeout_s=options.http_client_connect_timeout_ns / NS_PER_S,
            timeout_s=options.http_client_request_timeout_ns / NS_PER_S,
        )
        try:
            self._posts = {url: self._client.target("POST", URL(url)) for url in options.post}
        except ValueError as error:
            raise ToolFailure(f"--post: {error}") from None

    def close(self) -> None:
        self._client.close()

    async def send(self, message: Message) -> None:
        """Returns when the message is answered."""
        if self._sample < 1.0 and random.random() > self._sample:
            message.finish()
            return
        host = self._pool.next()
        since_s = time.monotonic()
        try:
            status, retry_after_s = await self._ask(host.address, message.body)
        except (TimeoutError, OSError, ValueError) as error:
            self._pool.failed(host)
            log.error("ERROR: %s: %s", host.address, str(error) or type(error).__name__)
            message.requeue()
            return
        elapsed_s = time.monotonic() - since_s
        if (200 <= status < 300) if self._is_post else status == OK:
            self._pool.succeeded(host, elapsed_s)
            self._status.took(host.address, elapsed_s)
            message.finish()
            return
        if not self._retries_all and status not in self._retried:
            text = "ERROR: %s: got status code %d; dropped %s"
            log.error(text, host.address, status, message.id)
            message.finish()
            return
        self._pool.failed(host)
        log.error("ERROR: %s: got status code %d", host.address, status)
        message.requeue(retry_after_s if self._heeds_retry_after else None)

    async def _ask(self, address: str, body: bytes) -> tuple[int, float | None]:
        if self._is_post:
            answer = await self._client.ask(self._posts[address], body)
        else:
            url = URL(address.replace("%s", quote_plus(body)), encoded=True)
            answer = await self._client.ask(self._client.target("GET", url), None)
        return answer.status, _seconds(answer.retry_after)


def _seconds(text: str) -> float | None:
    """Retry-After in seconds; dates are not read."""
    return min(float(text), RETRY_AFTER_MAX_S) if text.isascii() and text.isdigit() else None
