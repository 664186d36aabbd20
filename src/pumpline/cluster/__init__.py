"""The only HTTP client for nsqds and nsqlookupds of the tools, nsqadmin, Spark and testing."""
