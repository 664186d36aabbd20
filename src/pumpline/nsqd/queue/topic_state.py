"""The states of a topic, from its creation to its end."""

from enum import Enum, auto


class TopicState(Enum):
    PROVISIONAL = auto()  # a publish created it, and is not written yet: if it fails, it is deleted
    OPEN = auto()
    CLOSED = auto()  # it is deleted, or nsqd has stopped


# `TopicState.OPEN` takes 60 ns in Python 3.11, a name of this module 2.
PROVISIONAL, OPEN, CLOSED = TopicState
