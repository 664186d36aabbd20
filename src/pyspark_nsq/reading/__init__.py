"""What a task of a read does: raw batches into Arrow columns."""
