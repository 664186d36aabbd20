"""The topic log: the only code that opens data files."""
