"""The command line that all pipelines share: flags for source and Spark, and how errors are shown.

A pipeline is a module with `EXAMPLES`, `arguments(parser)` and `run(arguments, console)`; `main`
does the rest, for `pumpline pipeline NAME` and `python -m pyspark_nsq.pipelines.NAME`.
"""

import logging
import os
import re
import sys
from argparse import (
    ArgumentParser,
    ArgumentTypeError,
    Namespace,
    RawDescriptionHelpFormatter,
    _ArgumentGroup,
)
from collections.abc import Sequence
from difflib import get_close_matches
from types import ModuleType
from typing import Protocol, TextIO, cast

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from rich.console import Console

from pyspark_nsq.errors import BadOption, NsqError
from pyspark_nsq.options import parse_write
from pyspark_nsq.pipelines.running.cluster import ship_code
from pyspark_nsq.pipelines.running.watch import Stop, first_sentence
from pyspark_nsq.session import local_session
from pyspark_nsq.writing.sink import check_nodes

EXIT_OK, EXIT_FAILED, EXIT_INTERRUPTED = 0, 1, 130
LOCAL = "local"
PIPE_COLUMNS = 10_000  # rich would cut tables at 80
LOG_LEVEL = "FATAL"  # what ends a pipeline is told in one line; ERROR adds forty lines of Java
# PySpark logs errors of queries here, with the trace, although it raises them as well.
QUERY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_UNIT = r"(?:micro|milli)?seconds?|minutes?|hours?|days?|weeks?"
_TIME = re.compile(rf"(?:interval\s+)?\d+(?:\.\d+)?\s+(?:{_UNIT})(?:\s+\d+\s+(?:{_UNIT}))*", re.I)


class Pipeline(Protocol):
    """What the module of a pipeline must have."""

    EXAMPLES: str

    def arguments(self, parser: ArgumentParser) -> None: ...

    def run(self, arguments: Namespace, console: Console) -> int: ...


def main(module: ModuleType, argv: Sequence[str] | None = None) -> int:
    """From the command line to the exit code."""
    pipeline = cast(Pipeline, module)
    name = module.__name__.rpartition(".")[2]
    if module.__name__ == "__main__":
        name = str(module.__file__).rpartition("/")[2].removesuffix(".py")
    parser = ArgumentParser(
        prog=f"pumpline pipeline {name}",
        description=module.__doc__,
        epilog=f"examples:\n{pipeline.EXAMPLES}",
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    pipeline.arguments(parser)
    given = sys.argv[1:] if argv is None else argv
    if (wrong := unknown_flag(parser, given)) is not None:
        parser.error(wrong)
    arguments = parser.parse_args(given)
    try:
        return pipeline.run(arguments, console(sys.stderr))
    except BrokenPipeError:  # the reader of its output has gone, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except (NsqError, PySparkException, Py4JError, ConnectionError) as error:
        print(f"pumpline pipeline {name}: {_said(error)}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:  # before a batch ran, or for the second time
        print(f"pumpline pipeline {name}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def console(file: TextIO) -> Console:
    """A console for standard output or error; in a pipe, tables are as wide as they have to be."""
    return Console(file=file, highlight=False, width=None if file.isatty() else PIPE_COLUMNS)


def unknown_flag(parser: ArgumentParser, given: Sequence[str]) -> str | None:
    """The error for the first unknown flag. argparse itself would complain of a missing required
    flag, which the user has only misspelt."""
    known = parser._option_string_actions
    for argument in given:
        name = argument.partition("=")[0]
        if argument == "--":
            break
        # As argparse does: text with a space in it, such as SQL, and a lone dash are values.
        if len(name) < 2 or not name.startswith("-") or " " in argument or name in known:
            continue
        close = get_close_matches(f"--{name.lstrip('-').lower().replace('_', '-')}", known, n=1)
        return f"unknown flag {name}" + (f": did you mean {close[0]}?" if close else "")
    return None


def _said(error: Exception) -> str:
    if isinstance(error, Py4JJavaError):  # such as one of a file system
        said = first_sentence(str(error))
        is_known = not said.startswith("An error occurred while calling")
        return said if is_known else str(error.java_exception.toString()).splitlines()[0]
    if isinstance(error, Py4JError | ConnectionError):
        return f"Spark's Java process has ended, or does not answer ({first_sentence(str(error))})"
    return first_sentence(str(error))


def add_source(parser: ArgumentParser) -> None:
    """Add the flags that say where to read."""
    group = parser.add_argument_group("what is read")
    group.add_argument("--nsqd", metavar="ADDRESSES", help="HTTP addresses of nsqds: host:4151,...")
    group.add_argument(
        "--lookupd", metavar="ADDRESSES", help="HTTP addresses of nsqlookupds: host:4161,..."
    )
    group.add_argument("--topic", metavar="TOPICS", help="topics, with commas between them")
    group.add_argument(
        "--topic-pattern", metavar="REGEX", help="all topics like this, new ones too"
    )
    group.add_argument(
        "--without-node",
        metavar="NODES",
        help="go on although these nodes are missing: host:4150,... as in the column node",
    )
    group.add_argument(
        "--access-token-file",
        metavar="FILE",
        help="with the token that nodes want; a token in an --option is seen by all, in `ps`",
    )
    add_option(group, "--option", "any other option of format('nsq'), as in tlsCaFile=ca.pem")


def add_streaming(parser: ArgumentParser, *, every: str, start: str = "earliest") -> None:
    """Add the flags that say how a stream runs."""
    group = parser.add_argument_group("how it runs")
    group.add_argument("--checkpoint", metavar="DIR", help="where it notes how far it is")
    group.add_argument("--once", action="store_true", help="read what is there, then end")
    group.add_argument(
        "--every",
        metavar="TIME",
        type=duration,
        default=every,
        help="between two batches (default: %(default)s)",
    )
    group.add_argument(
        "--start",
        metavar="PLACE",
        default=start,
        help="where a new checkpoint begins: earliest, latest, a date and time, or JSON of offsets "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--max-rows",
        metavar="N",
        type=int,
        default=1_000_000,
        help="in one batch (default: %(default)s); --option maxBytesPerTrigger=N limits its bytes",
    )


def add_spark(parser: ArgumentParser) -> None:
    """Add the flags that say on which Spark to run."""
    group = parser.add_argument_group("where it runs")
    group.add_argument("--master", default="local[*]", help="Spark's (default: %(default)s)")
    add_option(group, "--conf", "a setting of Spark, as in spark.driver.memory=4g")


def duration(text: str) -> str:
    """A time as Spark writes it, checked before Spark starts."""
    if not _TIME.fullmatch(text.strip()):
        raise ArgumentTypeError(f"'{text}' is not a time like '10 seconds' or '1 minute'")
    return text


def add_option(group: _ArgumentGroup, flag: str, text: str) -> None:
    group.add_argument(flag, metavar="NAME=VALUE", action="append", default=[], help=text)


def reading(arguments: Namespace) -> dict[str, str]:
    """The options of format("nsq") for reading, by the arguments."""
    named = {
        "nsqd": arguments.nsqd,
        "lookupd": arguments.lookupd,
        "subscribe": arguments.topic,
        "subscribePattern": arguments.topic_pattern,
        "withoutNode": arguments.without_node,
        "accessTokenFile": arguments.access_token_file,
    }
    return {name: value for name, value in named.items() if value} | pairs(
        arguments.option, "--option"
    )


def connecting(options: dict[str, str]) -> dict[str, str]:
    """Those options for reading that writing takes, too."""
    names = {"accesstoken", "accesstokenfile", "tlscafile", "tlscertfile", "tlskeyfile"}
    names |= {"requesttimeoutms", "retryforms", "nsqd"}
    return {name: value for name, value in options.items() if name.lower() in names}


def writing(arguments: Namespace, options: dict[str, str]) -> dict[str, str]:
    """The options for writing to --to-nsqd, or to the nodes that are read."""
    target = connecting(options)
    if arguments.to_nsqd:
        target["nsqd"] = arguments.to_nsqd
    if "nsqd" not in target:
        raise BadOption("say where to publish: --to-nsqd host:4151,... (HTTP addresses of nsqds)")
    if arguments.to:
        target["topic"] = arguments.to
    # Report a missing node now: a running stream would wait for it.
    check_nodes(parse_write(target))
    return target


def triggered(writer: DataStreamWriter, arguments: Namespace) -> DataStreamWriter:
    if arguments.once:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=arguments.every)


def streaming(arguments: Namespace) -> dict[str, str]:
    """The options of format("nsq") for reading as a stream."""
    options = {"maxOffsetsPerTrigger": str(arguments.max_rows), **start_of(arguments.start)}
    return {**options, **reading(arguments)}


def start_of(place: str) -> dict[str, str]:
    is_time = place[:1].isdigit()
    return {"startingTimestamp": place} if is_time else {"startingOffsets": place}


def with_cores(spark: SparkSession, options: dict[str, str]) -> dict[str, str]:
    """These options, with the cores of all executors: a source is planned in a process that does
    not know them."""
    if "parallelism" in map(str.lower, options):
        return options
    return {**options, "parallelism": str(spark.sparkContext.defaultParallelism)}


def stream(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.readStream.format("nsq").options(**options).load()


def session(arguments: Namespace, name: str) -> SparkSession:
    given = pairs(arguments.conf, "--conf")
    is_local = arguments.master.startswith(LOCAL)
    # Interrupted while it starts Java, PySpark would leave that process behind.
    with Stop() as stop:
        spark = local_session(f"pumpline {name}", master=arguments.master, settings=given)
    if stop.asked.is_set():
        raise KeyboardInterrupt
    spark.sparkContext.setLogLevel(given.get("spark.log.level", LOG_LEVEL))
    if "spark.log.level" not in given:
        for logger in QUERY_LOGGERS:
            PySparkLogger.getLogger(logger).setLevel(logging.CRITICAL)
    if "spark.sql.shuffle.partitions" not in given:
        # The default of 200 makes 200 state stores a batch. A checkpoint keeps its first value.
        count = spark.sparkContext.defaultParallelism * (1 if is_local else 2)
        spark.conf.set("spark.sql.shuffle.partitions", max(count, 2))
    if not is_local:
        ship_code(spark)
    return spark


def pairs(given: Sequence[str], flag: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise BadOption(f"{flag} wants NAME=VALUE, not '{text}'")
        found[name.strip()] = value
    return found
