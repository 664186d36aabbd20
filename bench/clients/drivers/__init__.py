"""One program a client library: publishes or consumes for a while, and prints how it went.

    python -m bench.clients.drivers.pumpline_driver mpub 127.0.0.1:4150 topic 3

A process of its own for each library keeps gevent's patches and other people's event loops apart.
"""
