"""Models as their model.json describes them, without a generated repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf_triton.runtime.weights.served_model import ServedModel

VALUES: dict[str, Any] = {
    "name": "tiny",
    "task": "text-generation",
    "model": "org/tiny",
    "local": False,
    "revision": None,
    "dtype": "auto",
    "device_map": None,
    "trust_remote_code": False,
    "max_batch_size": 0,
    "options": {},
    "public_name": "tiny",
    "decoupled": False,
}


def served_model(folder: Path, **changes: Any) -> ServedModel:
    """A model whose folder in a repository is ``folder``; ``changes`` are to VALUES."""
    return ServedModel(folder=folder, **{**VALUES, **changes})
