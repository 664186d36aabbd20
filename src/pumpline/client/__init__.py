"""Clients of nsqd and nsqlookupd."""
