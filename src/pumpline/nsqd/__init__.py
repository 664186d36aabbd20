"""nsqd: topics, channels and the connections that use them."""
