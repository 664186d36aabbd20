"""Regular expressions in RE2's syntax, which auth servers write, by means of Python's `re`.

| RE2                                                   | here                            |
|-------------------------------------------------------|---------------------------------|
| `\\z`, `\\Q...\\E`, `\\x{...}`, `[[:alpha:]]`, `(?<n>)`    | translated                      |
| `(?i)` at the start of the expression or of a group   | translated                      |
| `(?i)` anywhere else, `(?U)`, `\\p...`, `\\C`           | ExpressionError                 |
| what RE2 refuses and `re` has: references, assertions | ExpressionError                 |
| about other groups, possessive repetition, comments   |                                 |
| `\\d`, `\\s`, `\\w`, `\\b`                                | ASCII only, in both             |

Unlike RE2, `re` may take exponential time over an expression such as `(a+)+$`.
"""

import re

REPEAT_MAX = 1000  # RE2's

_REPEAT = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_GROUP = re.compile(r"\(\?(?:P?<(?P<name>\w+)>|(?P<flags>[a-zA-Z]*(?:-[a-zA-Z]+)?)(?P<end>[:)]))")
_CODE_POINT = re.compile(r"\\x\{([0-9a-fA-F]{1,6})\}")
_PLAIN_ESCAPE = re.compile(
    r"\\(?:[abfnrtvABdDsSwW]|x[0-9a-fA-F]{2}|0[0-7]{0,2}|[^0-9A-Za-z])", re.A
)
_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": r"\x00-\x7f",
    "blank": r"\t ",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\v\f\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}


class ExpressionError(Exception):
    """No expression of RE2's, or one that cannot be translated."""


def compile_expression(text: str) -> re.Pattern[str]:
    translation = _Translation(text)
    translation.run()
    try:
        return re.compile("".join(translation.out), re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise ExpressionError(str(error)) from None


class _Translation:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.out: list[str] = []
        self._closings = [""]  # what closes each open group, the whole being the first
        self._at_group_start = True

    def run(self) -> None:
        repeated = False  # the last thing was a repetition
        while self.at < len(self.text):
            char = self.text[self.at]
            starts, self._at_group_start = self._at_group_start, False
            if char in "*+?{":
                repeated = self._repetition(char, after_another=repeated)
                continue
            repeated = False
            if char == "\\":
                self.out.append(self._escape())
            elif char == "[":
                self._bracket()
            elif char == "(":
                self._open_group(is_first=starts)
            elif char == ")":
                self._close_group()
            else:
                self._take(char, 1)
        self.out.append(self._closings[0])

    def _take(self, translated: str, length: int) -> None:
        self.out.append(translated)
        self.at += length

    def _repetition(self, char: str, *, after_another: bool) -> bool:
        """Take a repetition, with the `?` that makes it lazy; False if it is but a brace."""
        length = 1
        if char == "{":
            bounds = _REPEAT.match(self.text, self.at)
            if bounds is None:
                self._take(r"\{", 1)
                return False
            if any(int(bound) > REPEAT_MAX for bound in bounds.groups() if bound):
                raise ExpressionError("invalid repeat count")
            length = len(bounds[0])
        if after_another:
            raise ExpressionError("invalid nested repetition operator")
        length += self.text.startswith("?", self.at + length)
        self._take(self.text[self.at : self.at + length], length)
        return True

    def _escape(self) -> str:
        """Take an escape sequence."""
        rest = self.text[self.at : self.at + 2]
        if rest == r"\z":
            self.at += 2
            return r"\Z"
        if rest == r"\Q":
            literal, _, _ = self.text[self.at + 2 :].partition(r"\E")
            self.at = min(self.at + len(literal) + 4, len(self.text))
            return re.escape(literal)
        code_point = _CODE_POINT.match(self.text, self.at)
        if code_point is not None and int(code_point[1], 16) <= 0x10FFFF:
            self.at = code_point.end()
            return re.escape(chr(int(code_point[1], 16)))
        plain = _PLAIN_ESCAPE.match(self.text, self.at)
        if plain is None:
            raise ExpressionError(f"invalid escape sequence {rest}")
        self.at = plain.end()
        return plain[0]

    def _bracket(self) -> None:
        """Take a character class."""
        start = self.at
        self._take("[", 1)
        if self.text.startswith("^", self.at):
            self._take("^", 1)
        if self.text.startswith("]", self.at):
            self._take(r"\]", 1)
        while not self.text.startswith("]", self.at):
            if self.at >= len(self.text):
                raise ExpressionError(f"missing closing ] in {self.text[start:]}")
            self._class_member(self.text[self.at])
        self._take("]", 1)

    def _class_member(self, char: str) -> None:
        if char == "\\":
            self.out.append(self._escape())
        elif self.text.startswith("[:", self.at) and ":]" in self.text[self.at :]:
            name = self.text[self.at + 2 : self.text.index(":]", self.at)]
            if name not in _CLASSES:
                raise ExpressionError(f"invalid character class range [:{name}:]")
            self._take(_CLASSES[name], len(name) + 4)
        else:
            # These would warn of set operations that `re` may have one day.
            self._take("\\" + char if char in "[&|~" else char, 1)

    def _open_group(self, *, is_first: bool) -> None:
        if not self.text.startswith("(?", self.at):
            self._take("(", 1)
            self._begin(")")
            return
        group = _GROUP.match(self.text, self.at)
        if group is None or set(group["flags"] or "") - set("ims-"):
            raise ExpressionError("invalid or unsupported Perl syntax")
        if group["name"]:
            self._take(f"(?P<{group['name']}>", len(group[0]))
            self._begin(")")
        elif group["end"] == ":":
            self._take(group[0], len(group[0]))
            self._begin(")")
        elif is_first and group["flags"]:
            # For the rest of the group, which is all of it.
            self._take(f"(?{group['flags']}:", len(group[0]))
            self._closings[-1] += ")"
            self._at_group_start = True
        else:
            raise ExpressionError("flags in the middle of an expression are not supported")

    def _begin(self, closing: str) -> None:
        self._closings.append(closing)
        self._at_group_start = True

    def _close_group(self) -> None:
        if len(self._closings) == 1:
            raise ExpressionError("unexpected )")
        self._take(self._closings.pop(), 1)
