"""What goes into a log: several lines at once, and what strangers say."""

LOG_CHARS_MAX = 300  # of what a stranger chose


class Lines(tuple[str, ...]):
    """A log message of several lines of its own. As one record they cost a tenth of many."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(self)


def one_line(text: str) -> str:
    """`text`, which a stranger chose, fit for a log line."""
    text = text[:LOG_CHARS_MAX]
    if text.isascii() and text.isprintable():
        return text
    return text.encode("unicode_escape", "surrogateescape").decode("ascii")
