"""Nodes behind TLS and access tokens: read, streamed and written, and what is told when they say
no."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_nsq.errors import BadOption, NodeRefused, NsqError, Unreachable, Untrusted
from pyspark_nsq.nodes.connection import NodeConnection
from pyspark_nsq.options import Connecting, parse_read
from pyspark_nsq.pipelines import transform
from tests.kit.certificates import Authority
from tests.kit.daemons import Nsqd, Nsqlookupd, wait_until
from tests.kit.spark.pipelines import run
from tests.kit.spark.streams import Stream
from tests.kit.spark.topics import numbered, producers, publish
from tests.spark.conftest import QUICK

TOKEN, READ_TOKEN = "all-of-it-0123456789", "reading-0123456789"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Nsqd]:
    """A node with HTTPS, which wants a token."""
    directory = tmp_path_factory.mktemp("secured")
    tokens = directory / "tokens"
    tokens.write_text(f"{TOKEN}\n{READ_TOKEN} read\n")
    tokens.chmod(0o600)
    flags = (*authority.issue("server").flags(), "--https-address=127.0.0.1:0")
    with Nsqd(directory / "data", (*flags, f"--http-token-file={tokens}")) as daemon:
        yield daemon


def https(node: Nsqd) -> str:
    return f"https://127.0.0.1:{node.listening_port('HTTPS')}"


def connecting(**said: str) -> Connecting:
    return parse_read(
        {"nsqd": "a:1", "subscribe": "a", **QUICK, **said}, streaming=False
    ).connecting


def asked(address: str, **said: str) -> object:
    connection = NodeConnection(address, connecting(**said))
    try:
        return connection.ask("/log/offsets", {})
    finally:
        connection.close()


def test_an_authority_that_is_not_known_is_told(secured: Nsqd, tmp_path: Path) -> None:
    wanted = r"its certificate is not trusted \(.*\): 'tlsCaFile'"
    with pytest.raises(Untrusted, match=wanted):
        asked(https(secured))
    with pytest.raises(Untrusted, match=wanted):
        asked(https(secured), tlsCaFile=str(Authority(tmp_path, "another").path))


def test_a_certificate_is_for_the_address_that_was_named(
    secured: Nsqd, authority: Authority
) -> None:
    address = https(secured).replace("127.0.0.1", "localhost")
    with pytest.raises(Untrusted, match=r"not trusted \(.*localhost"):
        asked(address, tlsCaFile=str(authority.path))


def test_a_port_without_tls_is_told(secured: Nsqd) -> None:
    with pytest.raises(Untrusted, match="speaks no TLS: this is no HTTPS port"):
        asked(f"https://{secured.http_address}")


def test_a_port_with_tls_is_told_to_who_asks_without(secured: Nsqd) -> None:
    with pytest.raises(Unreachable, match=r"its reply is not HTTP; is it an https:// port|closed"):
        asked(https(secured).replace("https", "http"))


def test_files_that_cannot_be_used_are_named(secured: Nsqd, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing\n")
    with pytest.raises(BadOption, match=r"'tlsCaFile' .*none.pem: No such file"):
        asked(https(secured), tlsCaFile=str(tmp_path / "none.pem"))
    with pytest.raises(BadOption, match=r"'tlsCaFile' .*empty.pem: no PEM file"):
        asked(https(secured), tlsCaFile=str(empty))
    with pytest.raises(BadOption, match=r"'tlsCertFile' .*, 'tlsKeyFile' .*: no PEM file"):
        asked(https(secured), tlsCertFile=str(empty), tlsKeyFile=str(empty))


def test_a_token_that_is_missing_wrong_or_not_enough_is_told(
    secured: Nsqd, authority: Authority
) -> None:
    trust = {"tlsCaFile": str(authority.path)}
    for said in ({}, {"accessToken": "guessed-0123456789"}):
        with pytest.raises(
            NodeRefused, match="401 UNAUTHORIZED: it wants an access token: 'accessToken'"
        ):
            asked(https(secured), **trust, **said)
    connection = NodeConnection(https(secured), connecting(**trust, accessToken=READ_TOKEN))
    with pytest.raises(NodeRefused, match="403 FORBIDDEN: this access token may only read"):
        connection.ask("/topic/create", {"topic": "t"}, method="POST")
    connection.close()
    with pytest.raises(BadOption, match="'accessToken' has characters other than") as told:
        connecting(accessToken="two\nlines")
    assert "lines" not in str(told.value)


def test_a_token_is_read_from_a_file_for_every_request(
    secured: Nsqd, authority: Authority, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    said = {"tlsCaFile": str(authority.path), "accessTokenFile": str(file)}
    with pytest.raises(
        BadOption, match=r"'accessTokenFile' .*token: No such file or directory \(on "
    ):
        asked(https(secured), **said)
    file.write_text("guessed-0123456789\n")
    connection = NodeConnection(https(secured), connecting(**said))
    with pytest.raises(NodeRefused, match="401 UNAUTHORIZED"):
        connection.ask("/log/offsets", {})
    file.write_text(f"{TOKEN}\n")
    assert connection.ask("/log/offsets", {})
    connection.close()
    file.write_text(f"# the token of the pipelines\n\n{TOKEN} read\n")
    assert asked(https(secured), **said)
    for text in ("", "two words", "x" * 70_000, "\xff"):
        file.write_text(text)
        with pytest.raises(BadOption, match=r"'accessTokenFile' .*token: ") as told:
            asked(https(secured), **said)
        assert "words" not in str(told.value)
    with pytest.raises(BadOption, match="'accessToken' or 'accessTokenFile', not both"):
        connecting(accessToken=TOKEN, accessTokenFile=str(file))


def test_a_node_that_wants_a_certificate_gets_one(tmp_path: Path, authority: Authority) -> None:
    flags = [*authority.issue("other").flags(), "--https-address=127.0.0.1:0"]
    friend = authority.issue("friend")
    trust = {"tlsCaFile": str(authority.path)}
    shown = {"tlsCertFile": str(friend.certificate), "tlsKeyFile": str(friend.key)}
    stranger = Authority(tmp_path, "unheard-of").issue("stranger")
    unknown = {"tlsCertFile": str(stranger.certificate), "tlsKeyFile": str(stranger.key)}
    with Nsqd(tmp_path / "data", [*flags, f"--http-client-ca-file={authority.path}"]) as node:
        assert asked(https(node), **trust, **shown)
        with pytest.raises(NodeRefused, match="403 CERTIFICATE_REQUIRED: it wants a certificate"):
            asked(https(node), **trust)
        with pytest.raises(NsqError, match=r"wants a certificate by an authority|does not answer"):
            asked(https(node), **trust, **unknown)


@pytest.mark.slow
def test_a_secured_node_is_written_to_read_and_streamed(
    spark: SparkSession, secured: Nsqd, authority: Authority, topic: str, work: Path
) -> None:
    said = {**QUICK, "nsqd": https(secured), "tlsCaFile": str(authority.path)}
    said["accessToken"] = TOKEN
    frame = spark.range(3000).selectExpr("CAST(id AS STRING) AS body")
    frame.write.format("nsq").mode("append").options(**said, topic=topic).save()
    reading = {**said, "accessToken": READ_TOKEN, "subscribe": topic}
    rows = spark.read.format("nsq").options(**reading).load().select("body").collect()
    assert Counter(bytes(row.body) for row in rows) == Counter(numbered(3000))
    stream = Stream(spark, work, **reading, hold="secured")
    stream.run()
    assert stream.bodies() == Counter(numbered(3000))


@pytest.mark.slow
def test_a_pipeline_takes_its_token_from_a_file(
    spark: SparkSession, secured: Nsqd, authority: Authority, topic: str, work: Path
) -> None:
    file = work / "token"
    file.write_text(TOKEN)
    asked = ("--nsqd", https(secured), "--option", f"tlsCaFile={authority.path}", "--topic", topic)
    asked += ("--access-token-file", str(file), "--to", f"{topic}-out", "--start", "earliest")
    asked += ("--sql", "SELECT body FROM input", "--checkpoint", str(work / "c"), "--once")
    target = {"nsqd": https(secured), "accessTokenFile": str(file), "topic": topic}
    frame = spark.range(10).selectExpr("CAST(id AS STRING) AS body").write.format("nsq")
    frame.mode("append").options(tlsCaFile=str(authority.path), **target).save()
    run(transform, *asked)
    target["subscribe"] = f"{target.pop('topic')}-out"
    reader = spark.read.format("nsq").options(tlsCaFile=str(authority.path), **target)
    rows = reader.load().select("body").collect()
    assert Counter(bytes(row.body) for row in rows) == Counter(numbered(10))
    file.unlink()
    with pytest.raises(NsqError, match="No such file"):
        run(transform, *asked)


@pytest.mark.slow
def test_what_a_secured_node_does_not_let_pass_is_told_by_spark(
    spark: SparkSession, secured: Nsqd, authority: Authority, topic: str, work: Path
) -> None:
    publish(secured, topic, numbered(1))
    said = {**QUICK, "nsqd": https(secured), "subscribe": topic, "accessToken": READ_TOKEN}
    with pytest.raises(PySparkException, match="certificate is not trusted"):
        spark.read.format("nsq").options(**said).load().count()
    with pytest.raises(PySparkException, match="certificate is not trusted"):
        Stream(spark, work, **said).run()
    said["tlsCaFile"] = str(authority.path)
    with pytest.raises(PySparkException, match="401 UNAUTHORIZED: it wants an access token"):
        spark.read.format("nsq").options(
            **{**said, "accessToken": "wrong-0123456789"}
        ).load().count()
    said["topic"] = said.pop("subscribe")
    with pytest.raises(PySparkException, match="403 FORBIDDEN: this access token may only read"):
        spark.sql("SELECT 'x' AS body").write.format("nsq").mode("append").options(**said).save()


@pytest.mark.slow
def test_nodes_that_want_tls_are_found_through_nsqlookupd(
    spark: SparkSession, nsqlookupd: Nsqlookupd, authority: Authority, topic: str, tmp_path: Path
) -> None:
    flags = (
        *authority.issue("required").flags(),
        "--https-address=127.0.0.1:0",
        "--tls-required",
        f"--lookupd-tcp-address={nsqlookupd.tcp_address}",
        "--broadcast-address=127.0.0.1",
    )
    said = {**QUICK, "tlsCaFile": str(authority.path)}
    with Nsqd(tmp_path / "data", flags) as node:
        frame = spark.sql("SELECT '1' AS body").write.format("nsq").mode("append")
        frame.options(**said, nsqd=https(node), topic=topic).save()
        wait_until(lambda: producers(nsqlookupd, topic))
        with pytest.raises(
            PySparkException, match=f"TLS_REQUIRED: use its HTTPS port, {https(node)}"
        ):
            frame.options(**said, nsqd=node.http_address, topic=topic).save()
        reader = spark.read.format("nsq").options(**said, subscribe=topic)
        assert reader.option("lookupd", nsqlookupd.http_address).load().count() == 1
