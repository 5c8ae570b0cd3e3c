"""Runs steps over a cache in pages."""
