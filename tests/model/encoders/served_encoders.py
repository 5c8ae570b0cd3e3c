"""A model.json's values for a tiny encoder, without a generated repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf_triton.runtime.weights.served_model import ServedModel
from tests.support import served_models as support


def served_model(files: Path, repository: Path, **changes: Any) -> ServedModel:
    """The model in ``files``, served from ``repository/tiny``, where its caches go."""
    values = {"task": "feature-extraction", "model": str(files), "local": True, **changes}
    return support.served_model(repository / "tiny", **values)
