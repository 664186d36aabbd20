"""`pumpline deadletters`: counted, looked at, and published again, once however often asked."""

import json

import pytest

from pumpline.client import Settings
from pumpline.cluster import dead_letters
from pumpline.sync import Consumer
from pumpline.testing import LocalNsqd
from tests.kit.tools.verbs import Pumpline, give_up


def bodies(nsqd: LocalNsqd, topic: str) -> list[str]:
    page = json.loads(nsqd.get(f"/log/peek?topic={topic}&limit=1000"))
    return [each.get("body", each.get("body_base64")) for each in page["messages"]]


def test_none_yet(nsqd: LocalNsqd, pumpline: Pumpline) -> None:
    nsqd.publish("orders", b"1")
    assert pumpline("deadletters").json() == []
    assert pumpline("deadletters", "show", "orders").json() == []
    said = pumpline("deadletters", "publish", "orders", "--all", "--yes")
    assert (said.code, "topic orders has no such dead letters" in said.err) == (1, True)
    nsqd.post("/topic/settings?topic=orders", b'{"max_attempts":3}')
    (row,) = pumpline("deadletters").json()
    assert (row["topic"], row["dead_letter_topic"], row["letters"]) == ("orders", "orders.dlq", 0)
    assert pumpline("deadletters", "show", "orders").json() == []


def test_letters_are_shown_as_what_they_were(nsqd: LocalNsqd, pumpline: Pumpline) -> None:
    give_up(nsqd, "orders", b"one", b"\xff\x00")
    assert pumpline("deadletters", "list", "orders").json()[0]["letters"] == 2
    newest, oldest = pumpline("deadletters", "show", "orders").json()
    assert (oldest["channel"], oldest["attempts"], oldest["body"]) == ("refusing", 1, "one")
    assert newest["body_base64"] == "/wA="
    assert len(pumpline("deadletters", "show", "orders", "--limit=1").json()) == 1
    said = pumpline("deadletters", "show", "orders", "--contains=one", "--table")
    assert [words[-1] for words in said.words] == ["one"]


def test_letters_of_a_consumer_are_shown_and_published_like_those_of_nsqd(
    nsqd: LocalNsqd, pumpline: Pumpline
) -> None:
    nsqd.publish("orders", b"one", b"\xff\x00")
    settings = Settings(requeue_delay_s=0, backoff_max_s=0)
    with Consumer(
        "orders", "billing", nsqd=nsqd.tcp_address, max_attempts=1, settings=settings
    ) as consumer:
        for message in consumer.messages(idle_s=1.0):
            message.requeue(0)
        nsqd.wait_until_done("orders", "billing")
    (row,) = pumpline("deadletters").json()
    assert (row["topic"], row["dead_letter_topic"], row["letters"]) == ("orders", "orders.dlq", 2)
    shown = pumpline("deadletters", "show", "orders").json()
    assert [(each["channel"], each["attempts"]) for each in shown] == [("billing", 2)] * 2
    assert pumpline("deadletters", "publish", "orders", "--all", "--yes").code == 0
    assert sorted(bodies(nsqd, "orders")[2:]) == ["/wA=", "one"]


def test_the_reason_of_an_invalid_body_is_shown(nsqd: LocalNsqd, pumpline: Pumpline) -> None:
    nsqd.publish("orders", b'"seven"')
    with Consumer("orders", "billing", nsqd=nsqd.tcp_address, type=int):
        nsqd.wait_until_done("orders", "billing")
    (shown,) = pumpline("deadletters", "show", "orders").json()
    assert (shown["reason"], shown["body"]) == ("Expected `int`, got `str`", '"seven"')
    said = pumpline("deadletters", "show", "orders", "--table")
    assert "Expected `int`, got `str`" in said.out
    give_up(nsqd, "others", b"one")
    assert "reason" not in pumpline("deadletters", "show", "others", "--table").out


def test_a_body_does_not_steer_the_terminal(nsqd: LocalNsqd, pumpline: Pumpline) -> None:
    give_up(nsqd, "orders", b"\x1b[2Jgone\nnew line\xc2\x9b1m")
    said = pumpline("deadletters", "show", "orders", "--table")
    assert len(said.out.splitlines()) == 2
    assert said.out.rstrip().endswith(r"\x1b[2Jgone\nnew line\x9b1m")


def test_letters_are_published_again_once(nsqd: LocalNsqd, pumpline: Pumpline) -> None:
    give_up(nsqd, "orders", b"one", b"\xff\x00", b"three")
    said = pumpline("deadletters", "publish", "orders", "--all")
    assert (said.code, "Publish 3 dead letters to topic orders again?" in said.err) == (1, True)
    third = pumpline("deadletters", "show", "orders").json()[0]
    assert pumpline("deadletters", "publish", "orders", f"--id={third['id']}", "--yes").code == 0
    assert bodies(nsqd, "orders")[3:] == ["three"]
    for _ in range(2):
        said = pumpline("deadletters", "publish", "orders", "--all", "--yes")
        assert (said.code, said.json()[0]["letters"]) == (0, 3)
    assert bodies(nsqd, "orders")[3:] == ["three", "one", "/wA="]


def test_letters_in_the_form_of_their_bodies(nsqd: LocalNsqd, pumpline: Pumpline) -> None:
    nsqd.post("/topic/create?topic=orders")
    nsqd.post("/topic/settings?topic=orders", b'{"max_attempts":1,"dead_letter_form":"body"}')
    give_up(nsqd, "orders", b'{"topic": "trap", "body": "no"}')
    assert pumpline("deadletters", "show", "orders").json()[0]["body"].startswith('{"topic"')
    assert pumpline("deadletters", "publish", "orders", "--ago=1h", "--yes").code == 0
    assert len(set(bodies(nsqd, "orders"))) == 1
    assert len(bodies(nsqd, "orders")) == 2


def test_a_json_message_of_another_program_is_published_as_it_is(
    nsqd: LocalNsqd, pumpline: Pumpline
) -> None:
    give_up(nsqd, "orders", b"one")
    nsqd.publish(pumpline("deadletters").json()[0]["dead_letter_topic"], b'{"topic": "theirs"}')
    assert pumpline("deadletters", "publish", "orders", "--all", "--yes").code == 0
    assert bodies(nsqd, "orders")[-2:] == ["one", '{"topic": "theirs"}']


def test_more_than_a_page(
    nsqd: LocalNsqd, pumpline: Pumpline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "PAGE_LETTERS", 3)
    sent = [b"%d" % index for index in range(10)]
    give_up(nsqd, "orders", *sent)
    assert pumpline("deadletters", "publish", "orders", "--all", "--yes").json()[0][
        "letters"
    ] == len(sent)
    assert nsqd.stats("orders")["message_count"] == 2 * len(sent)


def test_which_ones_has_to_be_said(nsqd: LocalNsqd, pumpline: Pumpline) -> None:
    for given in ([], ["--all", "--ago=1h"]):
        said = pumpline("deadletters", "publish", "orders", *given)
        assert (said.code, "say which, by one of" in said.err) == (2, True)
    assert pumpline("deadletters", "publish").code == pumpline("deadletters", "burn").code == 2
    assert pumpline("deadletters", "publish", "orders", "--ago=-1h").code == 2
    assert pumpline("deadletters", "show", "orders", "--limit=0").code == 2


@pytest.mark.parametrize("given", [("show",), ("publish", "--all")])
def test_a_topic_that_is_not_there(
    nsqd: LocalNsqd, pumpline: Pumpline, given: tuple[str, ...]
) -> None:
    said = pumpline("deadletters", given[0], "nowhere", *given[1:])
    assert (said.code, "no nsqd has a topic nowhere" in said.err) == (1, True)
