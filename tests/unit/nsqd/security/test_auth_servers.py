"""Questions to auth servers, over real sockets: how many at once, and what calls them off."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from pumpline.core.protocol.permissions import Grant, parse_grant
from pumpline.core.text.durations import NS_PER_S
from pumpline.nsqd.options import Options
from pumpline.nsqd.security import auth_servers
from pumpline.nsqd.security.access import AuthQuestion, auth_response
from pumpline.nsqd.security.auth_servers import AuthServers

EVERYTHING = (
    '{"ttl":60,"authorizations":'
    '[{"topic":".*","channels":[".*"],"permissions":["publish","subscribe"]}]}'
)


class Server:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.under_way = 0
        self.most_under_way = 0
        self.asked = asyncio.Event()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        self.asked.set()
        await self.go_on.wait()
        self.under_way -= 1
        return web.Response(text=EVERYTHING)


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[AuthServers]:
    """Auth servers of which there is one, this."""
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(web.Server(server), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    options = Options(
        auth_http_address=[f"127.0.0.1:{port}"], http_client_request_timeout_ns=30 * NS_PER_S
    )
    servers = AuthServers(options, ssl.create_default_context())
    try:
        yield servers
    finally:
        await servers.close()
        listener.close()


def question(secret: bytes = b"secret") -> AuthQuestion:
    return AuthQuestion(secret=secret, remote_ip="127.0.0.1", tls=False, common_name="")


def ask(servers: AuthServers) -> "asyncio.Future[Grant | None]":
    answer: asyncio.Future[Grant | None] = asyncio.get_running_loop().create_future()
    servers.ask(question(), "peer", answer.set_result)
    return answer


async def test_answer_comes_by_callback() -> None:
    server = Server()
    server.go_on.set()
    async with serving(server) as servers:
        grant = await ask(servers)
    assert grant is not None
    assert grant.allows("t", "ch")


async def test_question_that_is_called_off_is_not_answered() -> None:
    server = Server()
    answers: list[Grant | None] = []
    async with serving(server) as servers:
        call_off = servers.ask(question(), "peer", answers.append)
        await server.asked.wait()
        call_off()
        server.go_on.set()
        assert await ask(servers) is not None
    assert answers == []


async def test_closing_ends_what_is_under_way() -> None:
    server = Server()
    answers: list[Grant | None] = []
    async with serving(server) as servers:
        servers.ask(question(), "peer", answers.append)
        await server.asked.wait()
    assert answers == []


async def test_questions_under_way_are_bounded() -> None:
    server = Server()
    async with serving(server) as servers:
        answers = [ask(servers) for _ in range(auth_servers.QUERIES_MAX + 20)]
        while server.under_way < auth_servers.QUERIES_MAX:
            await asyncio.sleep(0)
        server.go_on.set()
        grants = await asyncio.gather(*answers)
    assert server.most_under_way == auth_servers.QUERIES_MAX
    assert None not in grants


def test_secret_is_not_shown() -> None:
    assert "s3cr3t" not in repr(question(b"s3cr3t"))


def test_response_is_json_as_go_writes_it() -> None:
    grant = parse_grant(b'{"ttl":1,"identity":"a<b>","identity_url":"?x&y","authorizations":[{}]}')
    assert auth_response(grant) == (
        rb'{"identity":"a\u003cb\u003e","identity_url":"?x\u0026y","permission_count":1}'
    )
