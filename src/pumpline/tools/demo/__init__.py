"""`pumpline demo`: two nsqds, one killed, consumers, a Spark table, and the books."""
