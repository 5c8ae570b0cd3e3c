"""A model.json's values for a tiny encoder, without a generated repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf_runtime.served_model import ServedModel


def served_model(files: Path, repository: Path, **changes: Any) -> ServedModel:
    """The model in ``files``, served from ``repository/tiny``, where its caches go."""
    values: dict[str, Any] = {
        "folder": repository / "tiny",
        "name": "tiny",
        "task": "feature-extraction",
        "model": str(files),
        "local": True,
        "revision": None,
        "dtype": "auto",
        "device_map": None,
        "trust_remote_code": False,
        "max_batch_size": 0,
        "options": {},
        "public_name": "tiny",
        "decoupled": False,
    }
    return ServedModel(**{**values, **changes})
