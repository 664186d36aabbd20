"""The exceptions of this source, each with a text of one sentence.

Spark shows the text of an exception to the user, so the text names the option, topic, node and
offset concerned, and what to do.
"""


class NsqError(Exception):
    """Superclass of all others; the text says what is wrong and where."""


class BadOption(NsqError):
    """An option is unknown, missing, or has an invalid value."""


class BadColumns(NsqError):
    """The columns to read or to write are not the columns of a topic."""


class Unreachable(NsqError):
    """A node or nsqlookupd does not answer."""


class Untrusted(NsqError):
    """TLS fails for a reason that trying again does not mend."""


class NotAllRead(NsqError):
    """An expected node is missing, so that a read would be incomplete."""


class UnknownTopic(NsqError):
    """No node has the topic."""


class DataLoss(NsqError):
    """Rows that the read needs are no longer on the node."""


class Damaged(NsqError):
    """What a node sent is not valid log data."""


class NodeRefused(NsqError):
    """A node answered a request with an error; `status` and `code` are the node's."""

    def __init__(self, text: str, *, status: int, code: str, details: dict[str, object]) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.details = details
