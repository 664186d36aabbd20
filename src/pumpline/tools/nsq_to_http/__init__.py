"""nsq_to_http: messages of topics as HTTP requests."""
