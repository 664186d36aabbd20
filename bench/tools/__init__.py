"""NSQ's tools, ours and the Go ones: a million messages through each."""
