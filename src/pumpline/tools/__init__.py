"""One thin main for each command."""
