"""SQL over archived tables and live topics together, with every row once.

Every topic is a view of its name (with _ for characters that SQL names cannot have). It has the
rows of the archived table, and from the nodes the rows that are not in the table yet.
NAME_quarantine has what does not parse, from both. Without --table a view has the nodes' logs only,
without --nsqd and --lookupd the table only. --since and --until limit all views to messages of that
time; without --table, the nodes send no others. A WHERE does not limit what the nodes send. Without
a query, statements are read from standard input; each ends with ;.
"""

import csv
import operator
import re
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pumpline.core.text.durations import parse_duration
from pyspark_nsq.errors import BadOption, NsqError
from pyspark_nsq.options import parse_time_ns, time_text
from pyspark_nsq.pipelines.json_events.events import sampled_schema, with_event
from pyspark_nsq.pipelines.lake.history import any_history
from pyspark_nsq.pipelines.lake.tables import add_catalog
from pyspark_nsq.pipelines.running import command
from pyspark_nsq.pipelines.running.batch_range import BOUNDS
from pyspark_nsq.pipelines.running.watch import first_sentence
from pyspark_nsq.pipelines.table.history import History

EXAMPLES = """
  pumpline pipeline sql --nsqd 127.0.0.1:4151 --table tables/orders \\
      "SELECT event.city, count(*) FROM orders GROUP BY 1"
  pumpline pipeline sql --nsqd 127.0.0.1:4151 --topic orders --since 1h \\
      "SELECT event.city, count(*) FROM orders GROUP BY 1"
  pumpline pipeline sql --nsqd 127.0.0.1:4151 --topic orders,refunds --output json \\
      "SELECT topic, count(*) FROM (SELECT topic FROM orders UNION ALL SELECT topic FROM refunds) \\
       GROUP BY 1"
"""

ROWS_MAX = 1000
QUARANTINE = "_quarantine"
NS_PER_US = 1000
OFFSET_BOUNDS = ("startingoffsets", "endingoffsets")


def view_name(topic: str) -> str:
    return re.sub(r"\W", "_", topic)


def views(
    spark: SparkSession, options: dict[str, str], tables: list[str], catalog: str | None = None
) -> list[str]:
    """Create a view for every topic of the tables and options; return their names."""
    is_live = "nsqd" in options or "lookupd" in options
    if not is_live and not tables:
        raise BadOption("say what to ask: --table DIR, or --nsqd with --topic")
    for name in options if tables else ():
        if name.lower() in OFFSET_BOUNDS:
            raise BadOption(f"'{name}' does not limit a table: use --since and --until")
    made = Views()
    kept = [(path, any_history(spark, path, catalog)) for path in tables]
    for path, table in kept:
        if is_live and table.settings.is_quarantine:
            raise BadOption(f"{path} is a quarantine: name its table, which has a view of both")
        for topic in table.topics:
            made.add(view_name(topic), _of_table(table, options, topic, is_live=is_live), path)
    wanted = [name.strip() for name in options.get("subscribe", "").split(",") if name.strip()]
    in_tables = {topic for _, table in kept for topic in table.topics}
    for topic in wanted:
        if topic not in in_tables:
            alone = {**options, "subscribe": topic}
            live = spark.read.format("nsq").options(**alone).load()
            made.add(view_name(topic), with_event(live, _schema_of(spark, alone)), topic)
    for path, table in kept:
        for topic in table.topics if table.settings.is_json else ():
            rows = _of_quarantine(table, options, topic, is_live=is_live)
            made.add(f"{view_name(topic)}{QUARANTINE}", rows, f"the quarantine of {path}")
    for name, rows in made.rows.items():
        rows.createOrReplaceTempView(f"`{name}`")  # it may begin with a digit
    return list(made.rows)


class Views:
    """The views by name; two views with the same name are an error."""

    def __init__(self) -> None:
        self.rows: dict[str, DataFrame] = {}
        self._whence: dict[str, str] = {}  # by the name in lower case, as Spark ignores case

    def add(self, name: str, rows: DataFrame, whence: str) -> None:
        other = self._whence.setdefault(name.lower(), whence)
        if name in self.rows or other != whence:
            raise BadOption(f"{other} and {whence} both have a view {name}: ask them one by one")
        self.rows[name] = rows


def _of_table(table: History, options: dict[str, str], topic: str, *, is_live: bool) -> DataFrame:
    rows = table.rows().where(F.col("topic") == topic)
    return _within(rows.unionByName(table.live(options, topic)) if is_live else rows, options)


def _of_quarantine(
    table: History, options: dict[str, str], topic: str, *, is_live: bool
) -> DataFrame:
    rows = table.quarantined().where(F.col("topic") == topic)
    rows = rows.unionByName(table.live_quarantined(options, topic)) if is_live else rows
    return _within(rows, options)


def _within(rows: DataFrame, options: dict[str, str]) -> DataFrame:
    """The rows between the times in the options. Without a table, the source reads no others."""
    given = {name.lower(): text for name, text in options.items()}
    for name, compare in (("startingTimestamp", operator.ge), ("endingTimestamp", operator.lt)):
        if (text := given.get(name.lower())) is not None:
            at = F.timestamp_micros(F.lit(parse_time_ns(name, text) // NS_PER_US))
            rows = rows.where(compare(F.col("timestamp"), at))
    return rows


def _schema_of(spark: SparkSession, options: dict[str, str]) -> StructType:
    """The schema of the events that are read; of all events of the topic if none is read."""
    schema = sampled_schema(spark, options)
    unlimited = {name: text for name, text in options.items() if name.lower() not in BOUNDS}
    if schema.fields or len(unlimited) == len(options):
        return schema
    return sampled_schema(spark, unlimited)


def arguments(parser: ArgumentParser) -> None:
    command.add_source(parser)
    parser.add_argument("sql", nargs="?", help="SELECT ... FROM a_topic")
    parser.add_argument("--table", metavar="DIR", action="append", default=[], help="of an archive")
    add_catalog(parser)
    parser.add_argument(
        "--since",
        metavar="TIME",
        type=moment,
        help="published then or later: a time like 2026-11-16T08:00:00Z, or how long ago, like 1h",
    )
    parser.add_argument("--until", metavar="TIME", type=moment, help="published before, like 5m")
    parser.add_argument("--output", choices=("table", "json", "csv"), default="table")
    parser.add_argument(
        "--max-rows", type=int, default=ROWS_MAX, help="that are shown (default: %(default)s)"
    )
    command.add_spark(parser)


def run(arguments: Namespace, console: Console) -> int:
    reading(arguments)  # so that wrong options are reported before Spark starts
    if arguments.topic_pattern:
        raise BadOption("name the topics by --topic; patterns have no view to go by")
    spark = command.session(arguments, "sql")

    def current_views() -> list[str]:
        """Views with what has been published until now."""
        options = command.with_cores(spark, reading(arguments))
        return views(spark, options, arguments.table, arguments.catalog)

    names = current_views()
    if arguments.sql:
        _show(spark.sql(arguments.sql), arguments)
        return command.EXIT_OK
    console.print(f"views: {', '.join(names)}", highlight=False)
    for statement in statements(sys.stdin):
        try:
            current_views()
            _show(spark.sql(statement), arguments)
        except (NsqError, PySparkException) as error:
            if not sys.stdin.isatty():
                raise
            console.print(first_sentence(str(error)), style="red", highlight=False, markup=False)
    return command.EXIT_OK


def reading(arguments: Namespace) -> dict[str, str]:
    """The options for reading, with --since and --until as they are at this moment."""
    options = command.reading(arguments)
    given = {name.lower() for name in options}
    now_ns = time.time_ns()
    for flag, name, text in (
        ("--since", "startingTimestamp", arguments.since),
        ("--until", "endingTimestamp", arguments.until),
    ):
        if text is None:
            continue
        if name.lower() in given:
            raise BadOption(f"say {flag} or --option {name}, not both")
        options[name] = at_time(text, now_ns=now_ns)
    return options


def moment(text: str) -> str:
    """A time or a duration before now, checked before Spark starts."""
    try:
        at_time(text, now_ns=0)
    except ValueError:
        raise ArgumentTypeError(
            f"'{text}' is neither a time like 2026-11-16T08:00:00Z nor a duration like 1h or 1h30m"
        ) from None
    return text


def at_time(text: str, *, now_ns: int) -> str:
    """A time as the source's options take it; ValueError if it is neither that nor a duration."""
    try:
        parse_time_ns("--since", text)
    except BadOption:
        ago_ns = parse_duration(text)
        if ago_ns < 0:
            raise ValueError(f"{text} is after now") from None
        return time_text(max(now_ns - ago_ns, 0))
    return text


def statements(lines: Iterator[str]) -> Iterator[str]:
    """The statements in the lines; a semicolon at the end of a line ends one."""
    text = ""
    for line in lines:
        text += line
        if line.rstrip().endswith(";"):
            if statement := text.strip().rstrip(";").strip():
                yield statement
            text = ""
    if text.strip():
        yield text


def _show(result: DataFrame, arguments: Namespace) -> None:
    rows = result.limit(arguments.max_rows + 1)
    if arguments.output == "json":
        rows = rows.select(F.to_json(F.struct("*")))
    found = rows.collect()
    shown = found[: arguments.max_rows]
    if arguments.output == "json":
        for row in shown:
            print(row[0])
    elif arguments.output == "csv":
        writer = csv.writer(sys.stdout)
        writer.writerow(result.columns)
        writer.writerows([_text(v) for v in row] for row in shown)
    else:
        table = Table(*result.columns)
        for row in shown:
            table.add_row(*(Text("NULL" if value is None else _text(value)) for value in row))
        command.console(sys.stdout).print(table)
    if len(found) > len(shown):
        said = f"the first {arguments.max_rows:,} rows; --max-rows shows more"
        print(said, file=sys.stdout if arguments.output == "table" else sys.stderr)


def _text(value: object) -> str:
    """A value as text for a person or a spreadsheet; empty for NULL."""
    if isinstance(value, bytes | bytearray):
        return value.decode(errors="replace")
    return "" if value is None else str(value)


if __name__ == "__main__":
    sys.exit(command.main(sys.modules[__name__]))
