"""The ``options:`` of a model that reads sounds with its texts.

Standard library only: the generator loads this file to check models.yaml, and the server loads it
to read ``model.json``.
"""

from __future__ import annotations

from hf_triton.text_generation.media_options import MediaOptions as Options

__all__ = ["Options"]

# Whether the engines here can answer piece by piece; read by generator/spec/task_folders.py.
STREAMS = True
# Whether weights may be quantized; read there too.
QUANTIZES = True
# What model.py imports beside hf_triton.runtime; read there too.
PACKAGES = ("text_generation",)
