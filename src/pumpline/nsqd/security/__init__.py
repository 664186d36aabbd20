"""TLS, auth servers and HTTP access tokens."""
