"""Reads models.yaml and models.lock, and reports every mistake in them at once."""
