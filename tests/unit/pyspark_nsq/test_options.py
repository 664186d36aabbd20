"""Options are checked before anything is asked of a node, with what was probably meant."""

import pytest

from pyspark_nsq.errors import BadOption
from pyspark_nsq.options import (
    EARLIEST,
    LATEST,
    READ_NAMES,
    WRITE_NAMES,
    AtOffsets,
    AtTime,
    ReadOptions,
    check_names,
    from_catalog,
    parse_read,
    parse_write,
)

GOOD = {"nsqd": "127.0.0.1:4151", "subscribe": "orders"}


def read(streaming: bool = False, **options: str) -> ReadOptions:
    return parse_read({**GOOD, **options}, streaming=streaming)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("subscripe", "subscribe"),
        ("startingOffset", "startingOffsets"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("failOnDataLost", "failOnDataLoss"),
        ("kafka.bootstrap.servers", "nsqd"),
        ("lookupd_http_address", "lookupd"),
        ("path", "subscribe"),
    ],
)
def test_a_wrong_name_gets_the_right_one_suggested(given: str, meant: str) -> None:
    with pytest.raises(BadOption, match=f"unknown option '{given}': did you mean '{meant}'"):
        check_names({**GOOD, given: "x"})


def test_a_name_like_no_other_gets_the_list() -> None:
    with pytest.raises(BadOption, match="known are: nsqd, lookupd, subscribe"):
        check_names({"zzzzzzzzzzzz": "1"})


def test_names_are_known_in_any_case_and_spark_s_own_are_let_through() -> None:
    check_names({name.upper(): "1" for name in (*READ_NAMES, *WRITE_NAMES)})
    check_names({"checkpointLocation": "/tmp/x", "spark.sql.x": "1", "pipelines.y": "1"})


def test_defaults_are_those_of_spark_s_kafka_source() -> None:
    batch, stream = read(), read(streaming=True)
    assert (batch.starting, batch.ending) == (EARLIEST, LATEST)
    assert stream.starting == LATEST
    assert batch.fail_on_data_loss and stream.fail_on_data_loss
    assert batch.trigger_rows_max is None and batch.hold is None


def test_addresses_may_be_urls_and_lists() -> None:
    options = read(nsqd="a:1, https://b:2/,a:1,[::1]:3", lookupd="http://c:4161")
    assert options.nsqd == ("http://a:1", "https://b:2", "http://[::1]:3")
    assert options.lookupd == ("http://c:4161",)


@pytest.mark.parametrize("address", ["nohost", "a:0", "a:99999", "a:b", "ftp://a:1", "a:1:2"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(BadOption, match="is not an address like"):
        read(nsqd=address)


def test_topics_are_a_list_without_repeats() -> None:
    assert read(subscribe="a, b,a").topics == ("a", "b")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscribe": "bad topic"}, "'bad topic' is not a valid topic name"),
        ({"subscribe": "a#ephemeral"}, "is ephemeral and has no log"),
        ({"subscribe": " , "}, "names no topic"),
        ({"subscribe": " "}, "'subscribe' is empty"),
        ({"subscribePattern": "a.*"}, "'subscribe' or 'subscribePattern', not both"),
        ({"startingOffsets": "first"}, "must be earliest or latest or JSON like"),
        ({"endingOffsets": "earliest"}, "must be latest or JSON like"),
        ({"startingOffsets": "{}"}, "or JSON like"),
        ({"startingOffsets": '{"a": 5}'}, "topic 'a' has no nodes"),
        ({"startingOffsets": '{"a": {"n:1": -3}}'}, "'a' on 'n:1' has -3"),
        ({"startingOffsets": '{"a": {"n:1": true}}'}, "'a' on 'n:1' has true"),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970 or like 2026"),
        ({"startingTimestamp": "1", "startingOffsets": "latest"}, "not both"),
        ({"minPartitions": "0"}, "'minPartitions' must be from 1 to 100,000, not 0"),
        ({"minPartitions": "many"}, "must be a whole number, not 'many'"),
        ({"maxOffsetsPerTrigger": "-5"}, "must be at least 1, not -5"),
        ({"maxBytesPerTrigger": "0"}, "must be at least 1, not 0"),
        ({"maxTriggerDelay": "1h"}, "'maxTriggerDelay' needs 'minOffsetsPerTrigger'"),
        (
            {"minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"},
            "must be a time like 30s, 15m or 1h, not 'soon'",
        ),
        (
            {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            "'minOffsetsPerTrigger' must be at most 4",
        ),
        ({"failOnDataLoss": "maybe"}, "must be true or false, not 'maybe'"),
        ({"withoutNode": "10.0.0.5"}, "'10.0.0.5' is not a node like 127.0.0.1:4150"),
        ({"hold": "bad hold"}, "not a valid channel name"),
        ({"holdBytesMax": "5"}, "needs 'hold'"),
        ({"holdDescription": "mine"}, "'holdDescription' needs 'hold'"),
        ({"tlsCertFile": "x"}, "go together"),
        ({"topic": "orders"}, "option 'topic' is for writing only"),
    ],
)
def test_a_value_that_makes_no_sense_is_told(options: dict[str, str], text: str) -> None:
    with pytest.raises(BadOption, match=text):
        read(**options)


def test_neither_address_nor_topic_is_told() -> None:
    with pytest.raises(BadOption, match="say where to read"):
        parse_read({"subscribe": "a"}, streaming=False)
    with pytest.raises(BadOption, match="as in subscribe=orders"):
        parse_read({"nsqd": "a:1"}, streaming=False)


def test_a_broken_pattern_is_told() -> None:
    with pytest.raises(BadOption, match=r"'subscribePattern': .* in 'a\['"):
        parse_read({"nsqd": "a:1", "subscribePattern": "a["}, streaming=False)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(BadOption, match=f"'{name}' makes no sense in a stream"):
        read(streaming=True, **{name: "latest"})


def test_bounds_are_parsed() -> None:
    options = read(startingOffsets='{"a": {"n:1": 5, "m:1": -2}}', endingTimestamp="1500")
    assert options.starting == AtOffsets({"a": {"n:1": 5, "m:1": -2}})
    assert options.ending == AtTime(1_500_000_000)
    assert read(startingTimestamp="1970-01-01T00:00:01.5Z").starting == AtTime(1_500_000_000)
    assert read(startingTimestamp="1970-01-01 02:00:00+02:00").starting == AtTime(0)
    assert read(startingOffsets="LATEST").starting == LATEST


def test_writing_needs_an_address_and_refuses_what_is_for_reading() -> None:
    assert parse_write({"nsqd": "a:1", "topic": "t"}).topic == "t"
    with pytest.raises(BadOption, match="say where to write"):
        parse_write({"topic": "t"})
    with pytest.raises(BadOption, match="option 'subscribe' is for reading only"):
        parse_write({"nsqd": "a:1", "subscribe": "t"})
    with pytest.raises(BadOption, match="'topic': 'no good' is not a valid"):
        parse_write({"nsqd": "a:1", "topic": "no good"})


def test_options_of_a_table_in_spark_s_catalog_are_understood() -> None:
    given = {f"option.{name}": value for name, value in GOOD.items()}
    given |= {"provider": "nsq", "owner": "me", "OPTION.fetchBytes": "65536"}
    options = from_catalog(given)
    check_names(options)
    assert parse_read(options, streaming=False).fetch_bytes == 65536


def test_without_any_option_the_limit_of_spark_s_catalog_is_told() -> None:
    for parse in (parse_write, lambda options: parse_read(options, streaming=False)):
        with pytest.raises(BadOption, match="Spark drops the options of CREATE TABLE"):
            parse({})
