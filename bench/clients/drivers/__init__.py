"""One program for each client library: it publishes or consumes for a while and prints a result.

    python -m bench.clients.drivers.pumpline_driver mpub 127.0.0.1:4150 topic 3

Each library runs in its own process, so that gevent's patches and event loops do not mix.
"""
