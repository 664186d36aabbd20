"""Conformance of the TCP protocol and of topic and channel semantics, over real sockets."""
