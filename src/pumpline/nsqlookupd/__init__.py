"""nsqlookupd: which nsqd has which topics and channels."""
