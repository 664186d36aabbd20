"""Which nsqd has which log, and from where to where."""
