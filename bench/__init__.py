"""Benchmarks. `python -m bench.broker --help` compares nsqd servers; see bench/README.md."""
