"""Telling nsqlookupds what this nsqd has, and asking them."""
