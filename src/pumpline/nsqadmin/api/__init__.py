"""nsqadmin's HTTP API: NSQ's routes, and what they need."""
