"""The exception that Triton's Python backend raises in models, under Triton's own name."""


class TritonModelException(Exception):  # noqa: N818, Triton's own name
    """A model raises it if it can't be loaded or run, and gets it if it asks too much."""
