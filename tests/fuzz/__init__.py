"""Fuzz tests: random and damaged bytes to every door of nsqd, from seeds that can be repeated."""
