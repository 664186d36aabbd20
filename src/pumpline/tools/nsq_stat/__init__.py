"""nsq_stat: figures of a channel over all its nodes, a row every interval."""
