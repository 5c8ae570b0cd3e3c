"""The ``options:`` of a model that reads sounds with its texts. The generator loads this file."""

from hf_triton.text_generation.options import MediaOptions as Options

__all__ = ["Options"]
