"""Serves any transformers pipeline by name."""
