"""AUTH: asking the auth servers what a client may do.

| method | request                                                                             |
|--------|-------------------------------------------------------------------------------------|
| get    | `<url>?common_name=...&remote_ip=...&secret=...&tls=true or false`                  |
| post   | to `<url>`, the same as a JSON object of one-element lists                          |

`<url>` is the address if it has a scheme, else `http://<address>/auth`. The servers are asked in
turn, from a random one on, until one answers; an answer that grants nothing is as none. Clients
never hear why they were refused; the log does, but for secrets.
"""

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from urllib.parse import urlencode, urlsplit

import msgspec

from pumpline.core.protocol.permissions import Grant, GrantError, parse_grant
from pumpline.nsqd.options import Options
from pumpline.nsqd.security.access import Answered, AuthQuestion
from pumpline.web.http_client import Asker, NoAnswer

QUERIES_MAX = 100  # under way at the same time; others wait, within their time limit

_FORBIDDEN = 403
_HTTPS_PORT = "https_port"

_LOG = logging.getLogger(__name__)


class AuthError(Exception):
    """No answer, or none that will do; the text is for the log, not for the client."""


class AuthServers:
    def __init__(self, options: Options, context: ssl.SSLContext) -> None:
        """`context` is for those that are asked over HTTPS."""
        self._addresses = options.auth_http_address
        self._posts = options.auth_http_request_method == "post"
        self._asker = Asker(
            connect_timeout_ns=options.http_client_connect_timeout_ns,
            timeout_ns=options.http_client_request_timeout_ns,
            requests_max=QUERIES_MAX,
            answer_bytes_max=options.max_body_size,
            tls=context,
        )
        self._tasks: set[asyncio.Task[Grant | None]] = set()

    def ask(self, question: AuthQuestion, peer: str, answered: Answered) -> Callable[[], object]:
        """Call `answered` with what is granted, or None; returns what calls that off."""
        task = asyncio.get_running_loop().create_task(self._ask(question, peer))
        self._tasks.add(task)

        def finished(task: asyncio.Task[Grant | None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                answered(task.result())

        task.add_done_callback(finished)
        return task.cancel

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._asker.close()

    async def _ask(self, question: AuthQuestion, peer: str) -> Grant | None:
        failures = []
        start = random.randrange(len(self._addresses))
        for address in self._addresses[start:] + self._addresses[:start]:
            try:
                return await self._ask_one(address, question)
            except AuthError as error:
                failures.append(f"failed to auth against {address} - {error}")
            except Exception:
                # The root of the task: whatever it was, the client waits for an answer.
                _LOG.exception("PROTOCOL(V2): [%s] AUTH failed", peer)
        _LOG.warning("PROTOCOL(V2): [%s] AUTH failed %s", peer, "; ".join(failures))
        return None

    async def _ask_one(self, address: str, question: AuthQuestion) -> Grant:
        url = address if "://" in address else f"http://{address}/auth"
        body: bytes | None = None
        if self._posts:
            fields = question.fields().items()
            lists = {name: [value.decode(errors="replace")] for name, value in fields}
            body = msgspec.json.encode(lists)
        else:
            url += ("&" if "?" in url else "?") + urlencode(question.fields())
        try:
            status, answer = await self._asker.ask(url, body)
            if status == _FORBIDDEN and not url.startswith("https:"):
                status, answer = await self._asker.ask(_over_https(url, answer), body)
        except TimeoutError:
            raise AuthError("timed out") from None
        except NoAnswer as error:
            raise AuthError(str(error)) from None
        if status != 200:
            raise AuthError(f"got response {status}")
        try:
            return parse_grant(answer)
        except GrantError as error:
            raise AuthError(str(error)) from None


def _over_https(url: str, answer: bytes) -> str:
    """Where to ask again, as the server said when it refused a request without TLS."""
    try:
        fields = msgspec.json.decode(answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        fields = None
    port = fields.get(_HTTPS_PORT) if isinstance(fields, dict) else None
    if not isinstance(port, int) or not 0 < port < 1 << 16:
        raise AuthError(f"got response {_FORBIDDEN}")
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    host = parts.hostname or ""
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return parts._replace(scheme="https", netloc=f"{user}{at}{place}").geturl()
