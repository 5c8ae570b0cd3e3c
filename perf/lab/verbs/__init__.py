"""Verbs of ``hf-triton perf`` that only a checkout has."""
