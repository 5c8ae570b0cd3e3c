"""hf_triton as a Python environment of a model's own sees it: none of the packages beside it.

The folder above this one is put on that environment's search path.
"""

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parents[3])]
