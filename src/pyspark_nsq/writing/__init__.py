"""Arrow columns into MPUBs, each with its publish token."""
