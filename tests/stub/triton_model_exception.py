"""The exception that Triton's Python backend raises in models, under Triton's own name."""


class TritonModelException(Exception):  # noqa: N818, Triton's own name
    """What a model raises where it can't be loaded or run, and gets where it asks too much."""
