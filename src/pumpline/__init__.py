"""pumpline: NSQ rebuilt on a log."""

__version__ = "0.1.0"

NSQ_VERSION = "1.3.0"
"""The version every daemon and tool reports to NSQ clients, which compare it."""
