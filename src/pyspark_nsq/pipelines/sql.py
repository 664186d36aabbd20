"""SQL over live topics and archived tables together: history and what came a moment ago, once each.

Every topic is a view of its name (with _ for what a name cannot have): rows of the table that the
archive pipeline keeps, and of the nodes what is not in it yet. Without --table it is the nodes'
logs alone, without --nsqd and --lookupd the table alone. Without a query, statements are read from
standard input, each ending with ;.
"""

import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from pyspark_nsq.errors import BadOption
from pyspark_nsq.pipelines import command
from pyspark_nsq.pipelines.history import History, history
from pyspark_nsq.pipelines.transform import sampled_schema, with_event

EXAMPLES = """
  pumpline pipeline sql --nsqd 127.0.0.1:4151 --table tables/orders \\
      "SELECT event.city, count(*) FROM orders GROUP BY 1"
  pumpline pipeline sql --nsqd 127.0.0.1:4151 --topic orders,refunds --output json \\
      "SELECT topic, count(*) FROM (SELECT topic FROM orders UNION ALL SELECT topic FROM refunds) \\
       GROUP BY 1"
"""

ROWS_MAX = 1000


def view_name(topic: str) -> str:
    return re.sub(r"\W", "_", topic)


def views(spark: SparkSession, options: dict[str, str], tables: list[str]) -> list[str]:
    """Makes a view of every topic there is in the tables and options; their names."""
    is_live = "nsqd" in options or "lookupd" in options
    if not is_live and not tables:
        raise BadOption("say what to ask: --table DIR, or --nsqd with --topic")
    made: dict[str, DataFrame] = {}
    for path in tables:
        for topic, rows in _of_table(history(spark, path), options, is_live=is_live).items():
            made[topic] = rows
    wanted = [name.strip() for name in options.get("subscribe", "").split(",") if name.strip()]
    for topic in wanted:
        if topic not in made:
            alone = {**options, "subscribe": topic}
            live = spark.read.format("nsq").options(**alone).load()
            made[topic] = with_event(live, sampled_schema(spark, alone))
    for topic, rows in made.items():
        rows.createOrReplaceTempView(view_name(topic))
    return [view_name(topic) for topic in made]


def _of_table(kept: History, options: dict[str, str], *, is_live: bool) -> dict[str, DataFrame]:
    topics = {topic for topic, _ in kept.positions}
    rows = kept.rows()
    if is_live:
        own = {k: v for k, v in options.items() if k not in ("subscribe", "subscribePattern")}
        rows = rows.unionByName(kept.live({**own, "subscribe": ",".join(sorted(topics))}))
    return {topic: rows.where(F.col("topic") == topic) for topic in topics}


def arguments(parser: ArgumentParser) -> None:
    command.add_source(parser)
    parser.add_argument("sql", nargs="?", help="SELECT ... FROM a_topic")
    parser.add_argument("--table", metavar="DIR", action="append", default=[], help="of an archive")
    parser.add_argument("--output", choices=("table", "json", "csv"), default="table")
    parser.add_argument(
        "--max-rows", type=int, default=ROWS_MAX, help="that are shown (default: %(default)s)"
    )
    command.add_spark(parser)


def run(arguments: Namespace, console: Console) -> int:
    options = command.reading(arguments)
    if arguments.topic_pattern:
        raise BadOption("name the topics by --topic; patterns have no view to go by")
    spark = command.session(arguments, "sql")
    if arguments.sql:
        views(spark, options, arguments.table)
        _show(spark.sql(arguments.sql), arguments)
        return command.EXIT_OK
    console.print(f"views: {', '.join(views(spark, options, arguments.table))}", highlight=False)
    for statement in statements(sys.stdin):
        views(spark, options, arguments.table)  # what is there by now
        _show(spark.sql(statement), arguments)
    return command.EXIT_OK


def statements(lines: Iterator[str]) -> Iterator[str]:
    """What is between semicolons at the ends of lines."""
    text = ""
    for line in lines:
        text += line
        if line.rstrip().endswith(";"):
            yield text.strip().rstrip(";")
            text = ""
    if text.strip():
        yield text


def _show(result: DataFrame, arguments: Namespace) -> None:
    rows = result.limit(arguments.max_rows + 1)
    if arguments.output == "json":
        for row in rows.select(F.to_json(F.struct("*"))).take(arguments.max_rows):
            print(row[0])
        return
    found = rows.collect()
    if arguments.output == "csv":
        import csv

        writer = csv.writer(sys.stdout)
        writer.writerow(result.columns)
        writer.writerows(tuple(row) for row in found[: arguments.max_rows])
        return
    table = Table(*result.columns)
    for row in found[: arguments.max_rows]:
        table.add_row(*(str(value) for value in row))
    Console(highlight=False).print(table)
    if len(found) > arguments.max_rows:
        print(f"the first {arguments.max_rows:,} rows; --max-rows shows more")


if __name__ == "__main__":
    sys.exit(command.main(sys.modules[__name__]))
