"""`pumpline context`: clusters have names, and a name stands for all that a command needs."""

from pathlib import Path

import pytest

from pumpline.testing import LocalNsqd
from tests.kit.tools.verbs import Pumpline


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pumpline: Pumpline) -> Path:
    path = tmp_path / "config" / "contexts.toml"
    monkeypatch.setenv("PUMPLINE_CONTEXTS", str(path))
    return path


def test_a_name_stands_for_addresses(path: Path, pumpline: Pumpline) -> None:
    with LocalNsqd() as one, LocalNsqd() as two:
        one.post("/topic/create?topic=first")
        two.post("/topic/create?topic=second")
        pumpline("context", "set", "a", "--nsqd", one.http_address)
        pumpline("context", "set", "b", "--nsqd", two.http_address, "--environment", "staging")
        assert [row["topic"] for row in pumpline("topics", "--context", "a").json()] == ["first"]
        assert [row["topic"] for row in pumpline("topics", "--context=b").json()] == ["second"]
        rows = pumpline("context").json()
        assert [(row["context"], row["environment"]) for row in rows] == [
            ("a", ""),
            ("b", "staging"),
        ]


def test_the_environment_chooses_and_addresses_win(
    path: Path, pumpline: Pumpline, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalNsqd() as one, LocalNsqd() as two:
        two.post("/topic/create?topic=second")
        pumpline("context", "set", "a", "--nsqd", one.http_address)
        monkeypatch.setenv("PUMPLINE_CONTEXT", "a")
        assert pumpline("topics").json() == []
        assert pumpline("context").json()[0]["current"] is True
        said = pumpline("topics", "--nsqd", two.http_address, "--names")
        assert said.out == "second\n"


def test_it_is_an_error_if_it_is_not_clear_which_cluster_is_meant(
    path: Path, pumpline: Pumpline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pumpline("context", "set", "a", "--nsqd", "127.0.0.1:1")
    said = pumpline("topics", "--context", "a", "--nsqd", "127.0.0.1:2")
    assert (said.code, said.err) == (2, "pumpline topics: use --context or addresses, not both\n")
    monkeypatch.setenv("PUMPLINE_CONTEXT", "a")
    monkeypatch.setenv("PUMPLINE_NSQD", "127.0.0.1:2")
    said = pumpline("topics")
    assert said.code == 2
    assert "PUMPLINE_CONTEXT and PUMPLINE_NSQD are both set" in said.err


def test_a_context_that_is_not_there_is_named(path: Path, pumpline: Pumpline) -> None:
    assert pumpline("topics", "--context", "nowhere").err == (
        f"pumpline topics: no context nowhere in {path}: there is none\n"
    )
    pumpline("context", "set", "here", "--nsqd", "127.0.0.1:1")
    said = pumpline("topics", "--context", "nowhere")
    assert (said.code, said.err) == (
        2,
        f"pumpline topics: no context nowhere in {path}: it has here\n",
    )
    assert pumpline("context", "show", "nowhere").code == 1


def test_its_token_is_used_and_no_other(
    path: Path, pumpline: Pumpline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("right", "wrong"):
        (tmp_path / name).write_text(f"{name}-token-0123456789\n")
        (tmp_path / name).chmod(0o600)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PUMPLINE_TOKEN_FILE", str(tmp_path / "wrong"))
    with LocalNsqd(f"--http-token-file={tmp_path / 'right'}") as nsqd:
        pumpline("context", "set", "a", "--nsqd", nsqd.http_address, "--token-file", "right")
        monkeypatch.chdir("/")
        assert pumpline("create", "orders", "--context", "a").code == 0
        pumpline("context", "set", "b", "--nsqd", nsqd.http_address)
        said = pumpline("create", "orders", "--context", "b")
        assert said.code == 1
        assert "401 UNAUTHORIZED" in said.err


def test_a_question_says_which_environment(path: Path, pumpline: Pumpline) -> None:
    with LocalNsqd() as nsqd:
        nsqd.post("/topic/create?topic=orders")
        pumpline("context", "set", "a", "--nsqd", nsqd.http_address, "--environment", "production")
        said = pumpline("delete", "orders", "--context", "a")
        assert said.code == 1
        assert said.err.startswith("production: Delete topic orders")


def test_one_is_replaced_shown_and_deleted(path: Path, pumpline: Pumpline) -> None:
    for address in ("127.0.0.1:1", "127.0.0.1:2"):
        assert pumpline("context", "set", "x.y", "--nsqd", address).code == 0
    pumpline("context", "set", "other", "--lookupd", "l-1:4161", "--lookupd", "l-2:4161")
    (row,) = pumpline("context", "show", "x.y").json()
    assert row["nsqd"] == ["127.0.0.1:2"]
    assert pumpline("context", "delete", "x.y").code == 0
    (left,) = pumpline("context").json()
    assert (left["context"], left["lookupd"]) == ("other", ["l-1:4161", "l-2:4161"])
    assert pumpline("context", "delete", "x.y").code == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["set", "a"], "context a: give it nsqd or lookupd addresses, and not both"),
        (["set", "a", "--nsqd=x"], "'x' is no address"),
        (["set", "a b", "--nsqd=x:1"], "context 'a b': a name has"),
        (["set"], "set needs a name"),
        (["list", "a"], "list takes no name"),
        (["use", "a"], "use: it is one of list, show, set, delete"),
        (["show", "a", "--nsqd=x:1"], "flags that describe a cluster are for `set`"),
    ],
)
def test_mistakes_are_usage_errors(
    path: Path, pumpline: Pumpline, arguments: list[str], said: str
) -> None:
    answer = pumpline("context", *arguments)
    assert answer.code == 2
    assert said in answer.err
    assert not path.exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[a]\nnsqd = 'x:1'\n", "Expected `array`"),
        ("[a]\nnsq = ['x:1']\n", "unknown field `nsq`"),
        ("[a\n", "line 1"),
        ("[a]\n", "context a: give it nsqd or lookupd"),
    ],
)
def test_a_file_that_makes_no_sense_is_named(
    path: Path, pumpline: Pumpline, text: str, said: str
) -> None:
    path.parent.mkdir()
    path.write_text(text)
    for command in (["context"], ["topics", "--context=a"]):
        answer = pumpline(*command)
        assert answer.code == 2
        assert str(path) in answer.err
        assert said in answer.err
    assert path.read_text() == text
