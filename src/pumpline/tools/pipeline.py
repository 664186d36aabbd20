"""`pumpline pipeline`: the data pipelines on Spark, by name.

The pipelines are programs in pyspark_nsq.pipelines. This finds them by name, and says in one
sentence what to install if Spark cannot run.
"""

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec

from pumpline.tools.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from pumpline.tools.standard_streams import run_with_streams

PIPELINES = {
    "archive": "topics into a table, each message once",
    "metrics": "rates, sizes and latencies of topics, live",
    "transform": "a topic through SQL into another topic",
    "replay": "a table, or a part of a topic, into a topic again",
    "maintain": "small files of a Delta or Iceberg table put together, old ones deleted",
    "sql": "SQL over live topics and archived tables together",
}
NEEDED = ("pyspark", "pyarrow", "numpy", "pandas")

USAGE = """pumpline pipeline: data pipelines over NSQ topics, on Spark

Usage: pumpline pipeline <pipeline> [arguments]

Pipelines:
{pipelines}

Examples:
  pumpline pipeline archive --lookupd 127.0.0.1:4161 --topic orders --table tables/orders
  pumpline pipeline sql --nsqd 127.0.0.1:4151 --table tables/orders \\
      "SELECT event.city, count(*) FROM orders GROUP BY 1"
  pumpline pipeline transform --nsqd 127.0.0.1:4151 --topic orders --to large_orders \\
      --checkpoint state/large --sql "SELECT body FROM input WHERE event.total > 1000"
  pumpline pipeline replay --nsqd 127.0.0.1:4151 --topic orders --since 2026-11-16T08:00:00Z \\
      --to orders_again --rate 1000
  pumpline pipeline metrics --nsqd 127.0.0.1:4151 --topic-pattern '.*'

They run on this machine with all its cores unless --master names a cluster.
`pumpline pipeline <pipeline> --help` tells the rest; docs/pipelines.md explains.
"""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = " ".join(["pumpline pipeline", *arguments[:1]])
    return run_with_streams(name, lambda: _main(arguments))


def _main(arguments: list[str]) -> int:
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "-help", "--help", "help"):
        print(usage(), end="")
        return EXIT_OK
    if name not in PIPELINES:
        meant = get_close_matches(name, PIPELINES, 1)
        hint = f" (did you mean {meant[0]}?)" if meant else ""
        print(f"unknown pipeline: {name}{hint}\n{usage()}", end="", file=sys.stderr)
        return EXIT_USAGE
    if (sentence := lacking()) is not None:
        print(sentence, file=sys.stderr)
        return EXIT_FAILED
    # Importing Spark takes a second, so it is imported only here.
    command = import_module("pyspark_nsq.pipelines.running.command")
    code: int = command.main(import_module(f"pyspark_nsq.pipelines.{name}"), arguments[1:])
    return code


def lacking() -> str | None:
    """The sentence on which Python packages are missing; None if none is."""
    absent = [name for name in NEEDED if find_spec(name) is None]
    if not absent:
        return None
    names = ", ".join(absent)
    return f"Pipelines run on Spark, and {names} is missing: pip install 'pumpline[spark]'."


def usage() -> str:
    width = max(map(len, PIPELINES))
    lines = [f"  {name:<{width}}  {text}" for name, text in PIPELINES.items()]
    return USAGE.format(pipelines="\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
