"""to_nsq: what comes on stdin into a topic."""
