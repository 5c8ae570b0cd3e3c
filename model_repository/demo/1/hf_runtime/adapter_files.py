"""Gets the files of a model's adapters into its cache, by the rules of the model's own files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from .errors import LoadError
from .model_files import model_files
from .served_model import ServedAdapter, ServedModel


def adapter_folders(served: ServedModel) -> dict[str, Path]:
    """Each adapter's folder by its name, in the order of models.yaml.

    Raises:
        LoadError: names the adapter that is not there, not allowed, or not as locked.
    """
    return {adapter.name: _folder(served, adapter) for adapter in served.adapters}


def _folder(served: ServedModel, adapter: ServedAdapter) -> Path:
    as_model = replace(
        served,
        model=adapter.model,
        local=adapter.local,
        revision=adapter.revision,
        locked_files=adapter.locked_files,
        adapters=(),
        is_adapter=True,
    )
    try:
        return model_files(as_model)
    except LoadError as error:
        raise LoadError(f"adapter {adapter.name}: {error}") from error
