"""What keeps a repeated batch from being published twice."""
