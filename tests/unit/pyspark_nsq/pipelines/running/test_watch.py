"""What ends a pipeline, in one sentence for the user."""

import pytest

from pyspark_nsq.pipelines.running.watch import first_sentence

TRACE = """\
An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
{raised}

\tat py4j.Protocol.getReturnValue(Protocol.java:476)
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("unknown topic\nJVM stacktrace:\n\tat a.b", "unknown topic"),
        ("", "Spark gives no reason"),
        (TRACE.format(raised="pyspark_nsq.errors.NsqError: t has no room"), "t has no room"),
        (TRACE.format(raised="KeyError: 'topic'"), "KeyError: 'topic'"),
        (
            "Traceback (most recent call last):\n  File a\nKeyError: 1\n\n"
            "During handling of the above exception, another exception occurred:\n\n"
            + TRACE.format(raised="ValueError: 2"),
            "ValueError: 2",
        ),
        ("Traceback (most recent call last):", "Traceback (most recent call last):"),
    ],
)
def test_the_sentence_for_the_user_is_what_was_raised(text: str, said: str) -> None:
    assert first_sentence(text) == said


def test_a_full_disk_is_told_whatever_was_raised() -> None:
    text = TRACE.format(raised="OSError: [Errno 28] No space left on device")
    assert first_sentence(text).startswith("a disk is full (No space left on device)")
