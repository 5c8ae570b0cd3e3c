"""The model repository on disk: compares it with what is rendered, and writes it."""
