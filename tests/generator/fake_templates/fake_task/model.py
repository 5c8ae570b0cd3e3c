"""Never run: only copied, with what it imports."""

import hf_runtime

from .options import Options

__all__ = ["Options", "hf_runtime"]
