"""What happens to a message: topics, channels, consumers, and the tick that serves them."""
