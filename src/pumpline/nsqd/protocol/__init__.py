"""A client's socket: protocol V2, from bytes to commands and back."""
