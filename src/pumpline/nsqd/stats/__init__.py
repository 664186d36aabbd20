"""nsqd's figures: /stats, Prometheus and statsd."""
