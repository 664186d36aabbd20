"""What the cluster is doing now: one poller for all browsers, rates, an hour of it, troubles."""
