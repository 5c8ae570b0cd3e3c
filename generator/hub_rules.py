"""What the server and the generator must agree on about Hub models: the runtime's own code for it.

Those modules of ``hf_runtime`` need neither torch nor Triton. In the server they lie beside
model.py; here they are imported from model_templates/.
"""

from __future__ import annotations

import sys
from pathlib import Path

_TEMPLATES = str(Path(__file__).resolve().parent.parent / "model_templates")
if _TEMPLATES not in sys.path:
    sys.path.append(_TEMPLATES)  # last: its folders' names are no names for others to find

from hf_runtime.file_hashes import RECORD_FILE, FileHashes, hash_file  # noqa: E402
from hf_runtime.hub_files import NotServableError, choose, choose_adapter, is_safe  # noqa: E402
from hf_runtime.hub_token import UnusableTokenError, error_line, hub_token  # noqa: E402
from hf_runtime.locked_files import (  # noqa: E402
    Difference,
    LockedFile,
    added_files,
    differences,
    missing_files,
    repository_folder,
    snapshot_folder,
)

__all__ = [
    "RECORD_FILE",
    "Difference",
    "FileHashes",
    "LockedFile",
    "NotServableError",
    "UnusableTokenError",
    "added_files",
    "choose",
    "choose_adapter",
    "differences",
    "error_line",
    "hash_file",
    "hub_token",
    "is_safe",
    "missing_files",
    "repository_folder",
    "snapshot_folder",
]
