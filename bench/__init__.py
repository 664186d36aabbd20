"""Benchmarks. `python -m bench.nsqd --help` compares nsqd servers; see bench/README.md."""
