"""Measures client libraries: `python -m bench.clients`."""
