"""nsqadmin's page of a large cluster, in a browser."""
