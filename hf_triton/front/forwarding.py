"""Forwards a front's requests to its engine, unchanged."""

from __future__ import annotations

from typing import Any

from hf_triton.runtime.link.engine_pool import EnginePool
from hf_triton.runtime.link.frames import LinkRequest
from hf_triton.runtime.request.responder import TritonResponder, answer_failure


class Front:
    """The requests of one front."""

    def __init__(self, engine: str, pb_utils: Any) -> None:
        """``engine`` is the Triton model that answers; ``pb_utils`` is the module
        ``triton_python_backend_utils``.
        """
        self._pb_utils = pb_utils
        self.engines = EnginePool(engine)

    def forward(self, request: Any) -> None:
        """Forwards a request, or answers it with the error that prevents that; never raises."""
        responder = TritonResponder(request, self._pb_utils)
        try:
            self.engines.forward(_read(request), responder)
        except Exception as error:
            answer_failure(responder, error, "a request was not forwarded")

    def close(self) -> None:
        """Answers pending requests with UNAVAILABLE and ends every thread."""
        self.engines.close()


def _read(request: Any) -> LinkRequest:
    return LinkRequest(
        {tensor.name(): tensor.as_numpy() for tensor in request.inputs()},
        request.parameters() or "{}",
        request.requested_output_names(),
        request.request_id(),
    )
