"""From what a pipeline runs into to what its user reads: a sentence and an exit code."""

from types import ModuleType

import pytest
from py4j.protocol import Py4JNetworkError

from pyspark_nsq.errors import NsqError
from pyspark_nsq.pipelines import command, sql


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (NsqError("no node"), 1, "pumpline pipeline bad: no node\n"),
        (Py4JNetworkError("closed"), 1, "Spark's Java process has ended, or does not answer (clo"),
        (ConnectionRefusedError(111, "refused"), 1, "Spark's Java process has ended, or does not"),
        (KeyboardInterrupt(), 130, "pumpline pipeline bad: interrupted\n"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_ends_a_pipeline_is_told_without_a_traceback(
    error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*_: object) -> int:
        raise error

    pipeline = ModuleType("pyspark_nsq.pipelines.bad")
    vars(pipeline).update(EXAMPLES="", arguments=lambda parser: None, run=run)
    assert command.main(pipeline, []) == code
    assert said in capsys.readouterr().err


def test_statements_end_with_a_semicolon_at_the_end_of_a_line() -> None:
    lines = ["SELECT ';'\n", "  AS a;\n", "\n", ";\n", "  ;;\n", "SELECT 2"]
    assert list(sql.statements(iter(lines))) == ["SELECT ';'\n  AS a", "SELECT 2"]
