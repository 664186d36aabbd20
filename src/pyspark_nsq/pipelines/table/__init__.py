"""A table that takes each batch once."""
