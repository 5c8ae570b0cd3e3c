"""The files of a model's adapters, which vLLM reads itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hf_triton.runtime import log
from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.weights.model_files import adapter_folders
from hf_triton.runtime.weights.served_model import ServedAdapter, ServedModel


class AdapterFile(NamedTuple):
    """An adapter, and the folder with its files."""

    adapter: ServedAdapter
    folder: Path


class AdapterFiles:
    """Finds the files of one model's adapters."""

    def __init__(self, served: ServedModel) -> None:
        self._served = served

    def read(self, wanted: Sequence[ServedAdapter]) -> list[AdapterFile]:
        """Raises LoadError where one is not there, with its name."""
        folders = adapter_folders(replace(self._served, adapters=tuple(wanted)))
        return [AdapterFile(one, folders[one.name]) for one in wanted]

    def at_load(self) -> list[AdapterFile]:
        """Those that the model has when it is loaded, without those that a request has loaded and
        that are not there any more. Raises LoadError as ``read``.
        """
        found = []
        for one in self._served.adapters:
            try:
                found += self.read([one])
            except LoadError as error:
                if one.loaded_at is None:
                    raise
                log.error(f"{self._served.name}: {error}; a request had loaded it, left out")
        return found
