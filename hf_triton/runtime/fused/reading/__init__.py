"""Finds in a model what parts.py describes, from one recorded forward."""
