"""The model repository on disk: what would change, and the writing of it."""
