"""Regular expressions of auth servers, in RE2's syntax, which is Go's.

The library is google-re2: it takes time linear in the text, whatever the expression is, so that an
auth server cannot make nsqd stand still. It comes with the extra `auth` and takes 10 ms to import;
only who has auth servers imports it.
"""

from typing import Protocol

_MISSING = "needs google-re2: pip install 'pumpline[auth]'"


class ExpressionError(Exception):
    """RE2 refuses the expression; the text says why."""


class ExpressionsMissing(Exception):
    """google-re2 is not installed; the text says how to install it."""


class Expression(Protocol):
    def search(self, text: str) -> object | None:
        """Anything but None if the expression matches a part of `text`."""


def require_expressions() -> None:
    """ExpressionsMissing unless expressions can be compiled."""
    try:
        import re2  # noqa: F401
    except ImportError:
        raise ExpressionsMissing(_MISSING) from None


def compile_expression(text: str) -> Expression:
    import re2  # here: see above

    options = re2.Options()
    options.log_errors = False  # to stderr; the error is raised as well
    options.never_capture = True  # nobody asks for groups, and they cost time
    try:
        expression: Expression = re2.compile(text, options)
    except re2.error as error:
        raise ExpressionError(_reason(error)) from None
    except UnicodeEncodeError:
        raise ExpressionError("invalid UTF-8") from None
    return expression


def _reason(error: Exception) -> str:
    """What RE2 says, which the library gives as bytes."""
    reason = error.args[0] if error.args else b""
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
