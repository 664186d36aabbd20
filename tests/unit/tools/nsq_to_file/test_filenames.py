"""Names of files: the placeholders, and NSQ's strftime."""

from datetime import UTC, datetime

from pumpline.tools.nsq_to_file.filenames import Filenames, Host, strftime, with_revision

NOW = datetime(2026, 11, 16, 18, 44, 51, tzinfo=UTC)


def test_the_conversions_are_those_of_nsqs_tool_and_others_stay() -> None:
    text = "%B-%b-%m-%A-%a-%d-%H-%I-%M-%S-%Y-%y-%p-%Z-%z-%%-%Q-%q-%j-%"
    recorded = "November-Nov-11-Monday-Mon-16-18-06-44-51-2026-26-PM-UTC-+0000-%-%Q-%q-%j-%"
    assert strftime(text, NOW) == recorded


def names(format: str, **changes: object) -> Filenames:
    settings: dict[str, object] = {
        "datetime_format": "%Y/%m",
        "host_identifier": "",
        "host": Host(name="shop.example", process_id=7),
        "has_revisions": True,
        "suffix": "",
    }
    return Filenames("orders", format=format, **{**settings, **changes})  # type: ignore[arg-type]


def test_placeholders_are_replaced() -> None:
    name = names("<TOPIC>.<HOST>.<PID><REV>.<DATETIME>.log").at(NOW)
    assert name == "orders.shop.7<REV>.2026/11.log"
    assert with_revision(name, 3) == "orders.shop.7-000003.2026/11.log"
    assert names("a<REV>", has_revisions=False).at(NOW) == "a"
    assert names("<HOST>", host_identifier="<SHORT_HOST>+<HOSTNAME>").at(NOW) == "shop+shop.example"


def test_the_suffix_is_added_once() -> None:
    assert names("a<REV>", suffix=".gz").at(NOW) == "a<REV>.gz"
    assert names("a<REV>.gz", suffix=".gz").at(NOW) == "a<REV>.gz"


def test_files_of_other_times_revisions_and_processes_are_ours() -> None:
    ours = names("<TOPIC>.<HOST>.<PID><REV>.<DATETIME>.log")
    assert ours.is_ours("orders.shop.12345-000017.2020/01.log")
    assert not ours.is_ours("other.shop.12345-000017.2020/01.log")
    assert not ours.is_ours("orders.shop.12345-000017.2020/01.log.bak")
