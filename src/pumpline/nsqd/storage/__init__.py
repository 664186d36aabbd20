"""When things reach the disk, and how they are read again on start."""
