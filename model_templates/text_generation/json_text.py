"""The JSON readers of hf_runtime, under the name that this task's modules know."""

from hf_runtime.json_text import read_list, read_object, short

__all__ = ["read_list", "read_object", "short"]
