"""Consuming: one channel of a topic from every nsqd that has it."""
