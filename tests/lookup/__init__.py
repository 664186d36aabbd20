"""nsqlookupd as a process, over its sockets."""
