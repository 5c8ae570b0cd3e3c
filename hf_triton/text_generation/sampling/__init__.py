"""Logits to tokens, each sequence with its own options."""
