"""Runs what a caller or a model's files could make endless in processes that the kernel ends."""
