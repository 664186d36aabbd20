"""A connection through TLS, compression and AUTH."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from pumpline.client.errors import AuthRequiredError, ConnectError
from pumpline.client.settings import Settings
from tests.kit.auth_server import REFUSED, AuthorityServer, grant
from tests.kit.certificates import Authority, client_context
from tests.kit.client.owner import Owner, publish_and_consume
from tests.kit.daemons import Nsqd

# -- layers -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tls_nsqd(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Nsqd]:
    directory = tmp_path_factory.mktemp("tls")
    with Nsqd(directory / "data", authority.issue("nsqd").flags()) as running:
        yield running


COMPRESSIONS = pytest.mark.parametrize("compression", ["", "snappy", "deflate"])


def settings_with(compression: str, tls: bool | ssl.SSLContext) -> Settings:
    return Settings(tls=tls, snappy=compression == "snappy", deflate=compression == "deflate")


@COMPRESSIONS
@pytest.mark.parametrize("with_tls", [False, True], ids=["plain", "tls"])
async def test_layers(
    tls_nsqd: Nsqd,
    authority: Authority,
    owner: Owner,
    topic: str,
    compression: str,
    with_tls: bool,
) -> None:
    settings = settings_with(compression, with_tls and client_context(authority=authority))
    connection = await owner.open(tls_nsqd.tcp_address, settings)
    assert connection.negotiated.tls_v1 is with_tls
    assert connection.negotiated.snappy is (compression == "snappy")
    assert connection.negotiated.deflate is (compression == "deflate")
    await publish_and_consume(connection, owner, topic)
    await connection.close()
    assert owner.reasons == [None]


async def test_a_server_that_cannot_be_verified_is_not_spoken_to(
    tls_nsqd: Nsqd, owner: Owner
) -> None:
    with pytest.raises(ConnectError, match="certificate verify failed"):
        await owner.open(tls_nsqd.tcp_address, Settings(tls=True))


async def test_tls_that_is_not_offered_is_not_gone_without(nsqd: Nsqd, owner: Owner) -> None:
    with pytest.raises(ConnectError, match="offers no TLS"):
        await owner.open(nsqd.tcp_address, Settings(tls=client_context()))


async def test_compression_that_is_not_offered_is_gone_without(
    tmp_path: Path, owner: Owner, topic: str
) -> None:
    with Nsqd(tmp_path / "data", ["--snappy=false"]) as plain:
        connection = await owner.open(plain.tcp_address, Settings(snappy=True))
        await publish_and_consume(connection, owner, topic)
        await connection.close()


# -- AUTH ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def auth_server() -> Iterator[AuthorityServer]:
    def answer(asked: object) -> object:
        return grant() if "secret=open" in getattr(asked, "target", "") else REFUSED

    with AuthorityServer(answer) as running:  # type: ignore[arg-type]
        yield running


@pytest.fixture(scope="module")
def auth_nsqd(
    tmp_path_factory: pytest.TempPathFactory, auth_server: AuthorityServer
) -> Iterator[Nsqd]:
    flags = [f"--auth-http-address={auth_server.address}"]
    with Nsqd(tmp_path_factory.mktemp("auth") / "data", flags) as running:
        yield running


async def test_auth(auth_nsqd: Nsqd, owner: Owner, topic: str) -> None:
    settings = Settings(auth_secret="open", snappy=True)
    connection = await owner.open(auth_nsqd.tcp_address, settings)
    await publish_and_consume(connection, owner, topic)
    await connection.close()


async def test_auth_with_the_wrong_secret(auth_nsqd: Nsqd, owner: Owner) -> None:
    with pytest.raises(ConnectError, match="E_AUTH_FAILED"):
        await owner.open(auth_nsqd.tcp_address, Settings(auth_secret="shut"))


async def test_auth_without_a_secret(auth_nsqd: Nsqd, owner: Owner) -> None:
    with pytest.raises(AuthRequiredError):
        await owner.open(auth_nsqd.tcp_address, Settings())


@pytest.mark.parametrize("with_tls", [False, True], ids=["plain", "tls"])
async def test_tls_is_told_before_auth_where_nsqd_requires_both(
    tmp_path: Path, authority: Authority, auth_server: AuthorityServer, owner: Owner, with_tls: bool
) -> None:
    flags = [
        *authority.issue("nsqd").flags(),
        "--tls-required=true",
        f"--auth-http-address={auth_server.address}",
    ]
    settings = Settings(tls=with_tls and client_context(authority=authority))
    with Nsqd(tmp_path / "data", flags) as nsqd, pytest.raises(AuthRequiredError) as failed:
        await owner.open(nsqd.tcp_address, settings)
    told = "nsqd requires TLS (tls in the settings) and an auth_secret"
    told_with_tls = "nsqd requires an auth_secret"
    assert str(failed.value).endswith(told_with_tls if with_tls else told)
