"""Hands a front's requests on to its engine, each as it is."""

from __future__ import annotations

from typing import Any

from hf_runtime.link.engines import Engines
from hf_runtime.link.forwarding import Forwarder
from hf_runtime.link.link_request import LinkRequest
from hf_runtime.request.responder import TritonResponder, answer_failure


class Front:
    """The requests of one front."""

    def __init__(self, engine: str, pb_utils: Any) -> None:
        """``engine`` is the model in Triton that answers; ``pb_utils`` is the module
        ``triton_python_backend_utils``.
        """
        self._pb_utils = pb_utils
        self._forwarder = Forwarder(Engines(engine))

    @property
    def engines(self) -> Engines:
        """Who can answer."""
        return self._forwarder.engines

    def forward(self, request: Any) -> None:
        """Passes a request on, or answers it with what is in the way; never raises."""
        responder = TritonResponder(request, self._pb_utils)
        try:
            self._forwarder.pass_on(_read(request), responder)
        except Exception as error:
            answer_failure(responder, error, "a request was not passed on")

    def close(self) -> None:
        """Answers what waits with UNAVAILABLE and ends every thread."""
        self._forwarder.close()


def _read(request: Any) -> LinkRequest:
    return LinkRequest(
        {tensor.name(): tensor.as_numpy() for tensor in request.inputs()},
        request.parameters() or "{}",
        request.requested_output_names(),
        request.request_id(),
    )
