"""Has schemathesis ask models that are there, so that its requests get beyond their names."""

from __future__ import annotations

import json
import os
from typing import Any

import schemathesis

# The model of each path that begins so; the longest one counts.
_MODELS: dict[str, str] = json.loads(os.environ["HF_TRITON_TEST_MODELS"])


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """The body; a model's name in it is one that is served."""
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        return body
    path = context.operation.path
    begun = max((one for one in _MODELS if path.startswith(one)), key=len)
    return {**body, "model": _MODELS[begun]}
