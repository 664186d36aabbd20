"""Flags are read as Go's flag package reads them."""

import textwrap
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumpline.core.text import flags
from pumpline.core.text.flags import (
    BOOL,
    DURATION,
    FLOAT,
    FLOATS,
    INT,
    LOG_LEVEL,
    STRING,
    STRINGS,
    FlagError,
    HelpRequested,
    LogLevel,
    OptionsError,
    option,
)


@dataclass(slots=True, kw_only=True)
class Pump:
    name: str = option(STRING, "p", "what it is called")
    size: int = option(INT, 10, "how many", config_key="pump_size")
    rate: float = option(FLOAT, 1.0, "how fast")
    wait_ns: int = option(DURATION, 250_000_000, "how long")
    loud: bool = option(BOOL, False, "make noise")
    quick: bool = option(BOOL, True, "hurry")
    topic: list[str] = option(STRINGS, list, "what to pump (repeatable)")
    share: list[float] = option(FLOATS, list, "shares")
    log_level: LogLevel = option(LOG_LEVEL, LogLevel.INFO, "least level")


TABLE = flags.table(Pump)


def parsed(*argv: str) -> dict[str, object]:
    return flags.parse(TABLE, argv).values


@pytest.mark.parametrize(
    "argv", [["-size", "5"], ["--size", "5"], ["-size=5"], ["--size=5"], ["--size", "9", "-size=5"]]
)
def test_one_or_two_dashes_and_equals_or_space_mean_the_same(argv: list[str]) -> None:
    assert parsed(*argv) == {"size": 5}


def test_only_flags_that_were_given_are_in_the_result() -> None:
    assert parsed() == {}


def test_a_value_may_be_empty_or_contain_equals_signs_or_dashes() -> None:
    assert parsed("--name=") == {"name": ""}
    assert parsed("--name=a=b") == {"name": "a=b"}
    assert parsed("--name", "-x") == {"name": "-x"}


@pytest.mark.parametrize("word", ["1", "t", "T", "true", "TRUE", "True"])
def test_booleans_take_these_words_for_true(word: str) -> None:
    assert parsed(f"--loud={word}") == {"loud": True}


@pytest.mark.parametrize("word", ["0", "f", "F", "false", "FALSE", "False"])
def test_booleans_take_these_words_for_false(word: str) -> None:
    assert parsed(f"--quick={word}") == {"quick": False}


def test_a_boolean_takes_a_value_only_after_an_equals_sign() -> None:
    outcome = flags.parse(TABLE, ["--loud", "false", "--size=5"])
    assert outcome.values == {"loud": True}
    assert outcome.rest == ["false", "--size=5"]


@pytest.mark.parametrize(
    ("argv", "rest"),
    [
        (["--loud", "file", "--size=5"], ["file", "--size=5"]),
        (["--loud", "--", "--size=5"], ["--size=5"]),
        (["--loud", "-", "--size=5"], ["-", "--size=5"]),
        (["--loud", "", "--size=5"], ["", "--size=5"]),
    ],
)
def test_parsing_ends_at_the_first_argument_that_is_no_flag(
    argv: list[str], rest: list[str]
) -> None:
    outcome = flags.parse(TABLE, argv)
    assert outcome.values == {"loud": True}
    assert outcome.rest == rest


def test_repeatable_flags_add_up_and_others_are_overwritten() -> None:
    assert parsed("--topic=a", "--name=x", "--topic", "b,c", "--name=y") == {
        "topic": ["a", "b,c"],
        "name": "y",
    }
    assert parsed("--share=0.5,0.25", "--share=1") == {"share": [0.5, 0.25, 1.0]}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-7", -7),
        ("+7", 7),
        ("0x1F", 31),
        ("0b101", 5),
        ("0o17", 15),
        ("017", 15),
        ("-017", -15),
        ("1_000", 1000),
        ("9223372036854775807", (1 << 63) - 1),
    ],
)
def test_integers_are_read_as_go_literals(text: str, value: int) -> None:
    assert parsed("--size", text) == {"size": value}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-x"], "flag provided but not defined: -x"),
        (["--siz=5"], "flag provided but not defined: -siz"),
        (["---size"], "bad flag syntax: ---size"),
        (["--=5"], "bad flag syntax: --=5"),
        (["-=5"], "bad flag syntax: -=5"),
        (["--size"], "flag needs an argument: -size"),
        (["--size=abc"], 'invalid value "abc" for flag -size: parse error'),
        (["--size="], 'invalid value "" for flag -size: parse error'),
        (["--size= 5"], 'invalid value " 5" for flag -size: parse error'),
        (["--size=5_"], 'invalid value "5_" for flag -size: parse error'),
        (["--size=08"], 'invalid value "08" for flag -size: parse error'),
        (["--size=\u0665"], 'invalid value "\u0665" for flag -size: parse error'),
        (
            ["--size=9223372036854775808"],
            'invalid value "9223372036854775808" for flag -size: value out of range',
        ),
        (["--rate=1_0"], 'invalid value "1_0" for flag -rate: parse error'),
        (["--wait=5"], 'invalid value "5" for flag -wait: parse error'),
        (["--loud=yes"], 'invalid boolean value "yes" for -loud: parse error'),
        (["--share=0.5,a"], 'invalid value "0.5,a" for flag -share: parse error'),
        (
            ["--log-level=x"],
            'invalid value "x" for flag -log-level: '
            "invalid log level 'x' (debug, info, warn, error, fatal)",
        ),
        (['--size=a"b\n'], 'invalid value "a\\"b\\n" for flag -size: parse error'),
    ],
)
def test_errors_are_in_gos_words(argv: list[str], message: str) -> None:
    with pytest.raises(FlagError) as caught:
        flags.parse(TABLE, argv)
    assert str(caught.value) == message


@pytest.mark.parametrize("word", ["-h", "--h", "-help", "--help"])
def test_help_is_asked_for_in_four_ways(word: str) -> None:
    with pytest.raises(HelpRequested):
        flags.parse(TABLE, ["--loud", word])


@given(st.lists(st.text(max_size=12) | st.sampled_from(["-", "--", "--size", "-size=", "-loud="])))
def test_any_arguments_parse_or_raise_the_documented_errors(argv: list[str]) -> None:
    try:
        outcome = flags.parse(TABLE, argv)
    except (FlagError, HelpRequested):
        return
    assert outcome.rest == argv[len(argv) - len(outcome.rest) :]


def test_a_flag_wins_over_the_config_file_and_that_over_the_default() -> None:
    config = {"pump_size": 20, "name": "from config", "unknown": 1}
    built = flags.build(Pump, {"size": 30}, config)
    assert built == Pump(size=30, name="from config")


def test_a_config_key_replaces_the_one_made_from_the_name() -> None:
    assert flags.build(Pump, {}, {"size": 20}).size == 10
    assert flags.attribute_of(Pump, "pump_size")[0] == "size"
    with pytest.raises(KeyError):
        flags.attribute_of(Pump, "size")


@pytest.mark.parametrize(
    ("config", "attribute", "value"),
    [
        ({"wait": "5s"}, "wait_ns", 5_000_000_000),
        ({"wait": 1500}, "wait_ns", 1_500_000_000),
        ({"pump_size": "77"}, "size", 77),
        ({"rate": 2}, "rate", 2.0),
        ({"loud": "true"}, "loud", True),
        ({"quick": False}, "quick", False),
        ({"topic": ["a", "b"]}, "topic", ["a", "b"]),
        ({"topic": "a,b"}, "topic", ["a", "b"]),
        ({"topic": ""}, "topic", []),
        ({"share": [0.5, 1]}, "share", [0.5, 1.0]),
        ({"share": "0.5, 1"}, "share", [0.5, 1.0]),
        ({"share": 0.5}, "share", [0.5]),
        ({"log_level": "WARN"}, "log_level", LogLevel.WARN),
    ],
)
def test_config_values_take_the_forms_nsq_takes(
    config: dict[str, object], attribute: str, value: object
) -> None:
    assert getattr(flags.build(Pump, {}, config), attribute) == value


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"wait": "5"}, 'failed parsing wait 5 - time: missing unit in duration "5"'),
        (
            {"wait": 2.5},
            "failed parsing wait 2.5 - not a duration, nor an integer of milliseconds",
        ),
        ({"wait": 1 << 62}, f"failed parsing wait {1 << 62} - value out of range"),
        ({"pump_size": 3.5}, "failed parsing pump_size 3.5 - not an integer"),
        ({"pump_size": True}, "failed parsing pump_size true - not an integer"),
        ({"pump_size": "x"}, "failed parsing pump_size x - parse error"),
        ({"name": 5}, "failed parsing name 5 - not a string"),
        ({"loud": 5}, "failed parsing loud 5 - parse error"),
        ({"topic": 5}, "failed parsing topic 5 - not a list of strings"),
        ({"topic": [5]}, "failed parsing topic [5] - not a string"),
        ({"rate": []}, "failed parsing rate [] - not a number"),
        ({"log_level": "x"}, "failed parsing log_level x"),
    ],
)
def test_a_config_value_of_the_wrong_form_is_named(config: dict[str, object], message: str) -> None:
    with pytest.raises(OptionsError) as caught:
        flags.build(Pump, {}, config)
    assert str(caught.value) == message


def test_instances_share_no_lists() -> None:
    flags.build(Pump, {}, {}).topic.append("a")
    assert flags.build(Pump, {}, {}).topic == []


def test_usage_tells_name_type_help_and_any_default_then_examples() -> None:
    text = flags.usage("pump", TABLE, examples="\npump --loud\npump --size=5\n")
    assert text == textwrap.dedent(
        """\
        Usage of pump:
          --log-level level
                least level (default info)
          --loud
                make noise
          --name string
                what it is called (default "p")
          --quick
                hurry (default true)
          --rate float
                how fast (default 1.0)
          --share value
                shares
          --size int
                how many (default 10)
          --topic value
                what to pump (repeatable)
          --wait duration
                how long (default 250ms)

        Examples:
          pump --loud
          pump --size=5
        """
    )
