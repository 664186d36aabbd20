"""An HTTP server with NSQ's manners: knows requests and routes, not what they are about."""
