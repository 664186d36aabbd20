"""Limits that users set: a value that cannot be meant is a ValueError which names the option."""


def check_not_negative(**limits: float) -> None:
    for name, value in limits.items():
        if not value >= 0:
            raise ValueError(f"{name} must not be negative")


def check_positive(**limits: float) -> None:
    for name, value in limits.items():
        if not value > 0:
            raise ValueError(f"{name} must be positive")
