"""The everyday verbs of the pumpline command, one module each."""
