"""A client's connection to one nsqd."""
