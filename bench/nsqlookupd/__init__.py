"""Measures nsqlookupd: `python -m bench.nsqlookupd`."""
