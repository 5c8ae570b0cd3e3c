"""Reads what a model writes as it comes: its reasoning, its calls of tools, and its text."""
