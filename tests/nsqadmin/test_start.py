"""nsqadmin as a command: what it refuses, its config file, TLS and access tokens, and its end."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.certificates import Authority
from tests.kit.daemons import wait_until
from tests.kit.nsqadmin.process import failing_start, lookupd_flags, nsqd_flags, running_nsqadmin
from tests.kit.nsqadmin.upstreams import NOT_FOUND, FakeDaemon, SilentPort, a_node, lookupd_of
from tests.kit.nsqlookupd.fleet import new_nsqd, post

START = "failed to instantiate nsqadmin - "
NSQD = "--nsqd-http-address=127.0.0.1:4151"


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ([], "--nsqd-http-address or --lookupd-http-address required"),
        (
            [NSQD, "--lookupd-http-address=127.0.0.1:4161"],
            "use --nsqd-http-address or --lookupd-http-address not both",
        ),
        (
            [NSQD, "--http-client-tls-cert=a"],
            "--http-client-tls-key must be specified with --http-client-tls-cert",
        ),
        (
            [NSQD, "--http-client-tls-key=a"],
            "--http-client-tls-cert must be specified with --http-client-tls-key",
        ),
        (
            ["--lookupd-http-address=nowhere"],
            "failed to resolve --lookupd-http-address (nowhere) - not an <addr>:<port>",
        ),
        ([NSQD, "--graphite-url=x:y"], "failed to parse --graphite-url (x:y) - "),
        ([NSQD, "--allow-config-from-cidr=x"], "failed to parse --allow-config-from-cidr (x) - "),
        ([NSQD, "--nsqd-token-file=/nowhere"], "failed to read --nsqd-token-file (/nowhere) - "),
        ([NSQD, "--http-client-tls-root-ca-file=/nowhere"], "failed to load the TLS files "),
        ([NSQD, "--http-client-request-timeout=-1s"], "--http-client-request-timeout must not be"),
    ],
)
def test_what_it_refuses(flags: list[str], text: str) -> None:
    code, log = failing_start(*flags)
    assert code == 1
    assert f"FATAL: {START}{text}" in log


def test_an_address_in_use() -> None:
    with SilentPort() as taken:
        code, log = failing_start(NSQD, f"--http-address={taken.address}")
    assert code == 1
    assert f"FATAL: {START}listen ({taken.address}) failed - " in log


def test_its_version() -> None:
    for module in ("pumpline.tools.nsqadmin", "pumpline.tools.pumpline nsqadmin"):
        done = subprocess.run(
            [sys.executable, "-m", *module.split(), "--version"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.startswith("nsqadmin v1.3.0 (")


def test_the_config_file(tmp_path: Path) -> None:
    with FakeDaemon(lambda asked: (404, "")) as nsqd:
        config = tmp_path / "nsqadmin.cfg"
        config.write_text(
            f'nsqd_http_addresses = ["{nsqd.address}"]\n'
            'admin_users = ["ann"]\nhttp_client_request_timeout = "7s"\nlog_level = "warn"\n'
            'base_path = "/a"\n'
        )
        with running_nsqadmin(
            tmp_path / "log", f"--config={config}", "--log-level=info", "--base-path=/b"
        ) as admin:
            assert admin.ask("/b/config/nsqd_http_addresses").json() == [nsqd.address]
            assert admin.ask("/b/config/admin_users").json() == ["ann"]
            assert admin.ask("/b/config/http_client_request_timeout").json() == 7_000_000_000
            assert admin.stop() == 0
            assert "NSQADMIN: bye" in admin.log_text()


def test_a_client_certificate_towards_an_nsqd(tmp_path: Path) -> None:
    """The nsqd answers plain HTTP with 403 and its HTTPS port, where it wants a certificate."""
    authority = Authority(tmp_path)
    server, client = authority.issue("server"), authority.issue("client")
    flags = [
        *server.flags(),
        f"--tls-root-ca-file={authority.path}",
        "--tls-required=true",
        "--tls-client-auth-policy=require-verify",
    ]
    known = [
        f"--http-client-tls-root-ca-file={authority.path}",
        f"--http-client-tls-cert={client.certificate}",
        f"--http-client-tls-key={client.key}",
    ]
    with new_nsqd(tmp_path / "data", flags=flags) as nsqd:
        to_nsqd = nsqd_flags([nsqd.http_address])
        with running_nsqadmin(tmp_path / "log", *to_nsqd, *known) as admin:
            assert admin.post("/api/topics", {"topic": "t", "channel": "c"}) == {"message": ""}
            assert admin.get("/api/topics")["topics"] == ["t"]
            assert admin.post("/api/topics/t", {"action": "pause"}) == {"message": ""}
            assert admin.get("/api/topics/t")["paused"] is True
            admin.knows(nsqd.http_address)
        with running_nsqadmin(tmp_path / "log2", *to_nsqd, *known[:1]) as stranger:
            assert stranger.ask("/api/topics").status == 502
        with running_nsqadmin(tmp_path / "log3", *to_nsqd) as distrustful:
            assert distrustful.ask("/api/topics").status == 502
            assert "its certificate is not trusted" in distrustful.ask("/api/topics").message


def test_a_timeout_of_zero_is_none(tmp_path: Path) -> None:
    limits = ["--http-client-request-timeout=0s", "--http-client-connect-timeout=0s"]
    with new_nsqd(tmp_path / "data") as nsqd:
        flags = [*nsqd_flags([nsqd.http_address]), *limits]
        with running_nsqadmin(tmp_path / "log", *flags) as admin:
            assert admin.post("/api/topics", {"topic": "t"}) == {"message": ""}
            assert admin.get("/api/topics")["topics"] == ["t"]


def test_access_tokens_towards_an_nsqd(tmp_path: Path) -> None:
    tokens, own = tmp_path / "tokens", tmp_path / "own"
    tokens.write_text("secret-of-16-characters\n")
    own.write_text("# of nsqadmin\nsecret-of-16-characters\n")
    for path in (tokens, own):
        path.chmod(0o600)
    with new_nsqd(tmp_path / "data", flags=[f"--http-token-file={tokens}"]) as nsqd:
        flags = nsqd_flags([nsqd.http_address])
        with running_nsqadmin(tmp_path / "log", *flags) as stranger:
            answer = stranger.ask("/api/topics", {"topic": "t"})
            assert answer.status == 502
            assert "UNAUTHORIZED" in answer.message
        with running_nsqadmin(tmp_path / "log2", *flags, f"--nsqd-token-file={own}") as admin:
            assert admin.post("/api/topics", {"topic": "t"}) == {"message": ""}
            admin.knows_topic("t")
            assert admin.view("messages?topic=t")["nodes"][0]["ok"]
            assert "secret-of-16-characters" not in admin.log_text()
            for path in (tokens, own):
                path.write_text("another-secret-of-an-admin\n")
            for daemon in (nsqd, admin):
                daemon.process.send_signal(signal.SIGHUP)
            wait_until(lambda: admin.ask("/api/topics", {"topic": "u"}).status == 200)


def test_an_access_token_is_for_nsqds_and_nobody_else(tmp_path: Path) -> None:
    secret = "secret-of-16-characters"
    own = tmp_path / "own"
    own.write_text(secret + "\n")
    stats = '{"version":"1.3.0","topics":[{"topic_name":"t","channels":[]}]}'
    with (
        FakeDaemon(lambda asked: (200, stats)) as nsqd,
        FakeDaemon(lambda asked: NOT_FOUND) as lookupd,
    ):
        lookupd.answer = lookupd_of(a_node(nsqd.port, "t"))
        flags = [*lookupd_flags([lookupd.address]), f"--nsqd-token-file={own}"]
        with running_nsqadmin(tmp_path / "log", *flags) as admin:
            admin.knows_topic("t")
            admin.get("/api/topics")
            admin.view("lookupds")
            admin.post("/api/topics", {"topic": "u", "channel": "c"})
            admin.post("/api/topics/t", {"action": "pause"})
    assert {asked.headers.get("authorization") for asked in nsqd.asked} == {f"Bearer {secret}"}
    assert {asked.method for asked in lookupd.asked} == {"GET", "POST"}
    assert not [asked for asked in lookupd.asked if "authorization" in asked.headers]


def test_graphite(tmp_path: Path) -> None:
    answers = iter([120.0, -1.0, None])

    def graphite(asked: object) -> tuple[int, str]:
        if asked.query.get("format") == "png":  # type: ignore[attr-defined]
            return 200, "\x7fnot a picture <script>"
        value = next(answers)
        told = "null" if value is None else value
        return 200, f'[{{"target":"x","datapoints":[[{told},1],[null,2]]}}]'

    with (
        FakeDaemon(graphite) as fake,
        running_nsqadmin(
            tmp_path / "log", NSQD, f"--graphite-url=http://{fake.address}", "--proxy-graphite"
        ) as admin,
    ):
        path = "/api/graphite?metric=rate&target=sumSeries(a)"
        assert admin.get(path) == {"rate": "2.00"}
        assert fake.asked[0].path == "/render"
        assert fake.asked[0].query == {
            "format": "json",
            "from": "-120sec",
            "until": "-60sec",
            "target": "sumSeries(a)",
        }
        assert admin.get(path) == {"rate": "N/A"}
        assert admin.get(path) == {"rate": "N/A"}
        picture = admin.ask("/render?target=a%20b&format=png")
        assert (picture.status, picture.headers["x-content-type-options"]) == (200, "nosniff")
        assert picture.headers["content-type"].startswith("text/plain")
        assert fake.asked[-1].query == {"target": "a b", "format": "png"}
        fake.answer = lambda asked: (500, "")
        answer = admin.ask(path)
        assert (answer.status, answer.message) == (500, "INTERNAL_ERROR")


def test_it_stops_while_it_polls_and_streams(tmp_path: Path) -> None:
    with (
        new_nsqd(tmp_path / "data") as nsqd,
        SilentPort() as silent,
        running_nsqadmin(
            tmp_path / "log", *nsqd_flags([nsqd.http_address, silent.address])
        ) as admin,
    ):
        post(nsqd, "/topic/create?topic=t")
        with admin.events("/api/v1/events?view=overview") as events:
            assert next(events)[0] == "full"
            assert admin.stop() == 0
        wait_until(lambda: not admin.is_running)
