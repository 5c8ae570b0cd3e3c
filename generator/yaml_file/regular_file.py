"""Reads a file that a user names, whatever stands under that name, by the server's own rule."""

from hf_triton.runtime.regular_file import read_json, read_regular

__all__ = ["read_json", "read_regular"]
