"""nsq_tail: prints messages, of a channel as NSQ's tool does, or of the log."""
