"""The engine's tests' tiny models on the GPU that is not there."""

from __future__ import annotations

from typing import Any

from tests.model.gpu.fake.models import causal_on_gpu
from tests.support.tiny_models import _SHAPE, CACHED, PACKED, STATES


def tiny_on_gpu(name: str, **changes: Any) -> Any:
    """The model of an entry of PACKED, CACHED or STATES of the engine's tests, bfloat16; its
    attention is transformers' default, as it is on a GPU.
    """
    model_type, differences = {**PACKED, **CACHED, **STATES}[name]
    config = {**_SHAPE, **differences, **changes}
    config.pop("attn_implementation", None)
    return causal_on_gpu(model_type, **config)
