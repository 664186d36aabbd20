"""JSON into columns, or the reason why not."""
