"""A cluster as a command sees it over HTTP: its nodes, what they say, and what each is told."""
