"""What can go wrong between Spark and the nodes, each as one exception with one sentence.

Spark shows the text of an exception to the user, so the text names the option, topic, node and
offset it is about, and what to do.
"""


class NsqError(Exception):
    """Something the user has to know; the text says what and where."""


class BadOption(NsqError):
    """An option is unknown, missing or has a value that makes no sense."""


class BadColumns(NsqError):
    """The columns asked for, or to be written, are not what a topic has."""


class Unreachable(NsqError):
    """A node or nsqlookupd does not answer."""


class Untrusted(NsqError):
    """A node and this side will not trust each other, today or in a minute."""


class UnknownTopic(NsqError):
    """No node has the topic."""


class DataLoss(NsqError):
    """Rows that should be read are no longer there."""


class Damaged(NsqError):
    """What a node sent is not valid log data."""


class NodeRefused(NsqError):
    """A node answered a request with an error; `status` and `code` are the node's."""

    def __init__(self, text: str, *, status: int, code: str, details: dict[str, object]) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.details = details
