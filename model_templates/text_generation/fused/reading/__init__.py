"""Finds in a model what decoder.py describes, from one recorded forward."""
