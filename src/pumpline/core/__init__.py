"""What pumpline knows without touching the world: no sockets, files, clock or logging."""
