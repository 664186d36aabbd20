"""Measures nsqd: `python -m bench.nsqd`."""
