"""The slots as transformers sees them: behind its interface of a cache."""
