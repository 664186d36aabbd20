"""nsq_to_nsq: messages of topics into topics of other nsqds."""
