"""Finds the Python environment of a model that has one of its own."""
