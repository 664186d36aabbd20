"""Publishing: batches, failover, and what is known after a failure."""
