"""What a model has written, read as it comes: its reasoning, its calls of tools, and its text."""
