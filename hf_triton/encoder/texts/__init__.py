"""Texts to token ids: tokenization, lengths, windows."""
