"""`pumpline backup`: consistent copies of the data directory of a running nsqd."""
