"""Messages by the batch: the log's format, delivery state and ids."""
