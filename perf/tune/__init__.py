"""Finds settings for a goal by trying them."""
