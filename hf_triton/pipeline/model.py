"""Triton's side of a pipeline."""

from __future__ import annotations

from hf_triton.runtime.engine.triton_model import Loader, TritonModel


class PipelineModel(TritonModel):
    """One instance of a served pipeline."""

    def loader(self) -> Loader:
        from .serving import serve_pipeline

        return serve_pipeline
