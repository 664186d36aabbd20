"""What people write: names, addresses, dates, durations and flags."""
