"""The environment of a process that `make coverage` is to leave alone."""

import os


def uncovered_environment() -> dict[str, str]:
    """Without what has coverage start with Python: it imports more, and an exception that a signal
    raises while it has its lock leaves that locked."""
    return {name: value for name, value in os.environ.items() if "COVERAGE" not in name}
