"""Reads a file that a user names, whatever stands under that name, by the server's own rule."""

from hf_triton.runtime.regular_file import check_regular, read_json, read_regular

__all__ = ["check_regular", "read_json", "read_regular"]
