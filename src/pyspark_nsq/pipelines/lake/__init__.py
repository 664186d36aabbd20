"""Tables in Delta and Iceberg."""
