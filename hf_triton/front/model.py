"""A front: a Triton model that forwards each request, unchanged, to the one that holds the engine.

Triton streams only from decoupled models and answers ``/infer`` only for the others. So a streaming
entry of models.yaml becomes two Triton models over one copy of the weights, and this is the one
that answers once. It imports neither torch nor transformers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from hf_triton.runtime import collect_normally, log
from hf_triton.runtime.heartbeat import Heartbeat
from hf_triton.runtime.link.engine_pool import EnginePool
from hf_triton.runtime.request.request import take_each


class FrontModel:
    """The one instance of a front."""

    def initialize(self, args: dict[str, str]) -> None:
        """Starts to look for engines; there need not be one yet."""
        collect_normally()
        name = args["model_name"]
        log.begin(name)
        path = Path(args["model_repository"], args["model_version"], "model.json")
        try:
            engine = json.loads(path.read_text(encoding="utf-8"))["engine"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            text = f"{name}: {path.name}: {error}; run `hf-triton generate` again"
            raise pb_utils.TritonModelException(text) from None
        self.engines = EnginePool(engine)
        self.heartbeat = Heartbeat(self.is_ready)
        log.info(f"{name}: passes requests on to {engine}")

    def execute(self, requests: list[Any]) -> None:
        """Takes the requests' response senders; the engine's answers go there later."""
        take_each(requests, pb_utils, self.engines.forward)

    def is_ready(self) -> bool:
        """True if an engine takes requests; asked by servers from 26.03 on."""
        return self.engines.is_any_reachable()

    def finalize(self) -> None:
        """Answers what still waits with UNAVAILABLE, and ends every thread."""
        if hasattr(self, "engines"):
            self.engines.close()
            self.heartbeat.stop()
