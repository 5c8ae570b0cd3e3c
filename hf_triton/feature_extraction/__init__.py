"""The feature-extraction task: one embedding of each text, as sentence-transformers makes them."""
