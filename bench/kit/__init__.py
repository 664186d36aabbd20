"""What all benchmarks share: servers, load processes, reports."""
