"""Never run: only copied, with what it imports."""

import hf_runtime

ROLE = "front"
__all__ = ["ROLE", "hf_runtime"]
