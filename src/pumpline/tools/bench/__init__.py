"""`pumpline bench`: how fast the user's own nsqd is, with pumpline's client."""
