"""nsqadmin: a page for a cluster of nsqds and nsqlookupds, which it asks over HTTP."""
