"""`pumpline top`: nodes, topics and channels, live in the terminal."""
