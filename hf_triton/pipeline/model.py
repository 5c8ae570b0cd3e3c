"""The Triton model of pipelines."""

from __future__ import annotations

from hf_triton.runtime.engine.triton_model import Loader, TritonModel


class PipelineModel(TritonModel):
    def loader(self) -> Loader:
        from .pipeline_loading import serve_pipeline

        return serve_pipeline
