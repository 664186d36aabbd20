"""Measures Spark over topics: `python -m bench.spark`."""
