"""Triton's side of a pipeline."""

from __future__ import annotations

from hf_runtime.engine.triton_model import Instance, TritonModel

from .reception import Reception
from .serving import serve_pipeline


class TritonPythonModel(TritonModel):
    """One instance of a served pipeline."""

    def serve(self, instance: Instance) -> Reception:
        """Loads the pipeline."""
        return serve_pipeline(instance)
