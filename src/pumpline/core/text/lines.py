"""What goes into a log: several lines at once, and what strangers say."""

LOG_CHARS_MAX = 300  # of what a stranger chose


class Lines(tuple[str, ...]):
    """A log message of several lines of its own. As one record they cost a tenth of many."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(self)


def one_line(text: str) -> str:
    """`text`, which a stranger chose, fit for a log line."""
    return escaped(text[:LOG_CHARS_MAX])


def escaped(text: str) -> str:
    """`text` on one line, and without what a terminal would obey: control characters, and what
    else cannot be printed, as Python writes them in a string."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # a byte that was no UTF-8
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")
